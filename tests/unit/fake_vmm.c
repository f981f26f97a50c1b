/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_vmm.h"

#include "driver/driver.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

enum { PIECES_MAX = 1 << 13 };

struct reservation {
    CUdeviceptr base;
    size_t size_bytes;
};

struct memory {
    size_t size_bytes; /* 0: no such handle */
    bool is_released, is_mapped;
};

struct mapping {
    CUdeviceptr address;
    size_t size_bytes, memory;
    uint64_t devices; /* that may use it, a bit each; the first is its own */
};

struct fake_vmm fake_vmm;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects everything here */
static struct reservation reservations[PIECES_MAX];
static struct memory memories[PIECES_MAX]; /* a handle is an index, plus one */
static struct mapping mappings[PIECES_MAX];
static struct reservation watched[PIECES_MAX];
static size_t watched_count;
static CUdeviceptr next_base;

/* Enters a call of the driver; false when it fails, with *result. */
static bool enter(CUresult *result)
{
    bool fails;

    if (fake_vmm.is_slow)
        nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
    pthread_mutex_lock(&lock);
    fake_vmm.calls++;
    fails = fake_vmm.fail_at == 1;
    if (fake_vmm.fail_at > 1 || (fails && !fake_vmm.fails_from_then_on))
        fake_vmm.fail_at--;
    *result = fails ? fake_vmm.fail_with : CUDA_SUCCESS;
    return !fails;
}

static CUresult leave(CUresult result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult misuse(void)
{
    fake_vmm.wrong_calls++;
    return leave(CUDA_ERROR_INVALID_VALUE);
}

static bool overlap(CUdeviceptr a, size_t a_bytes, CUdeviceptr b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static bool is_multiple(uint64_t value)
{
    return value && value % fake_vmm.granularity_bytes == 0;
}

static bool is_reserved(CUdeviceptr address, size_t size_bytes)
{
    for (size_t i = 0; i < fake_vmm.reservations; i++)
        if (address >= reservations[i].base &&
            address + size_bytes <= reservations[i].base + reservations[i].size_bytes)
            return true;
    return false;
}

static CUresult fake_reserve(CUdeviceptr *out, size_t size_bytes, size_t alignment,
                             CUdeviceptr hint, unsigned long long flags)
{
    CUresult result;

    (void)hint;
    if (!enter(&result))
        return leave(result);
    if (!is_multiple(size_bytes) || alignment || flags || fake_vmm.reservations == PIECES_MAX)
        return misuse();
    reservations[fake_vmm.reservations++] = (struct reservation){next_base, size_bytes};
    fake_vmm.reservations_made++;
    *out = next_base;
    next_base += size_bytes + fake_vmm.granularity_bytes; /* aligned to no more than it must be */
    return leave(CUDA_SUCCESS);
}

static CUresult fake_address_free(CUdeviceptr address, size_t size_bytes)
{
    CUresult result;

    if (!enter(&result))
        return leave(result);
    for (size_t i = 0; i < fake_vmm.mappings; i++)
        if (overlap(mappings[i].address, mappings[i].size_bytes, address, size_bytes))
            return misuse();
    for (size_t i = 0; i < fake_vmm.reservations; i++) {
        if (reservations[i].base != address || reservations[i].size_bytes != size_bytes)
            continue;
        reservations[i] = reservations[--fake_vmm.reservations];
        return leave(CUDA_SUCCESS);
    }
    return misuse();
}

static void call_once(void)
{
    void (*call)(void *);

    pthread_mutex_lock(&lock);
    call = fake_vmm.on_call;
    fake_vmm.on_call = NULL;
    pthread_mutex_unlock(&lock);
    if (call)
        call(fake_vmm.on_call_data);
}

static CUresult fake_create(CUmemGenericAllocationHandle *out, size_t size_bytes,
                            const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUresult result;
    size_t i = 0;

    call_once();
    if (!enter(&result))
        return leave(result);
    if (!is_multiple(size_bytes) || flags || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return misuse();
    while (i < PIECES_MAX && memories[i].size_bytes)
        i++;
    if (i == PIECES_MAX || fake_vmm.created_bytes + size_bytes > fake_vmm.capacity_bytes)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    memories[i] = (struct memory){.size_bytes = size_bytes};
    fake_vmm.created_bytes += size_bytes;
    if (fake_vmm.peak_bytes < fake_vmm.created_bytes)
        fake_vmm.peak_bytes = fake_vmm.created_bytes;
    fake_vmm.creations++;
    *out = i + 1;
    return leave(CUDA_SUCCESS);
}

static void drop_memory(struct memory *memory)
{
    if (!memory->is_released || memory->is_mapped)
        return;
    fake_vmm.created_bytes -= memory->size_bytes;
    *memory = (struct memory){.size_bytes = 0};
}

static struct memory *memory_of(CUmemGenericAllocationHandle handle)
{
    struct memory *memory = handle && handle <= PIECES_MAX ? &memories[handle - 1] : NULL;

    return memory && memory->size_bytes && !memory->is_released ? memory : NULL;
}

static CUresult fake_release(CUmemGenericAllocationHandle handle)
{
    struct memory *memory;
    CUresult result;

    if (fake_vmm.on_release)
        fake_vmm.on_release();
    if (!enter(&result))
        return leave(result);
    memory = memory_of(handle);
    if (!memory)
        return misuse();
    memory->is_released = true;
    drop_memory(memory);
    return leave(CUDA_SUCCESS);
}

static CUresult fake_map(CUdeviceptr address, size_t size_bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct memory *memory;
    CUresult result;

    if (!enter(&result))
        return leave(result);
    memory = memory_of(handle);
    if (!memory || memory->is_mapped || memory->size_bytes != size_bytes || offset || flags ||
        !is_reserved(address, size_bytes) || fake_vmm.mappings == PIECES_MAX)
        return misuse();
    for (size_t i = 0; i < fake_vmm.mappings; i++)
        if (overlap(mappings[i].address, mappings[i].size_bytes, address, size_bytes))
            return misuse();
    memory->is_mapped = true;
    mappings[fake_vmm.mappings++] =
        (struct mapping){address, size_bytes, (size_t)(memory - memories), 0};
    return leave(CUDA_SUCCESS);
}

/* Bytes of the range that whole mappings cover. */
static size_t covered_bytes(CUdeviceptr address, size_t size_bytes)
{
    size_t bytes = 0;

    for (size_t i = 0; i < fake_vmm.mappings; i++)
        if (mappings[i].address >= address &&
            mappings[i].address + mappings[i].size_bytes <= address + size_bytes)
            bytes += mappings[i].size_bytes;
    return bytes;
}

static CUresult fake_unmap(CUdeviceptr address, size_t size_bytes)
{
    CUresult result;

    if (!enter(&result))
        return leave(result);
    if (covered_bytes(address, size_bytes) != size_bytes)
        return misuse();
    for (size_t i = 0; i < watched_count; i++)
        if (overlap(watched[i].base, watched[i].size_bytes, address, size_bytes))
            return misuse();
    for (size_t i = 0; i < fake_vmm.mappings;) {
        struct memory *memory = &memories[mappings[i].memory];
        if (!overlap(mappings[i].address, mappings[i].size_bytes, address, size_bytes)) {
            i++;
            continue;
        }
        memory->is_mapped = false;
        drop_memory(memory);
        mappings[i] = mappings[--fake_vmm.mappings];
    }
    fake_vmm.unmappings++;
    fake_vmm.unmapped_unwaited++;
    return leave(CUDA_SUCCESS);
}

static void change_access(struct mapping *mapping, const CUmemAccessDesc *access)
{
    uint64_t bit = 1ull << access->location.id;

    if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        mapping->devices |= bit;
    else
        mapping->devices &= ~bit;
}

static CUresult fake_set_access(CUdeviceptr address, size_t size_bytes,
                                const CUmemAccessDesc *access, size_t count)
{
    CUresult result;

    if (fake_vmm.on_access)
        fake_vmm.on_access(fake_vmm.on_access_data);
    if (!enter(&result))
        return leave(result);
    if (count == 0 || covered_bytes(address, size_bytes) != size_bytes)
        return misuse();
    for (size_t i = 0; i < count; i++)
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || access[i].location.id < 0 ||
            access[i].location.id > 63 ||
            (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
             (access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE || access[i].location.id == 0)))
            return misuse();
    for (size_t i = 0; i < fake_vmm.mappings; i++)
        if (overlap(mappings[i].address, mappings[i].size_bytes, address, size_bytes))
            for (size_t j = 0; j < count; j++)
                change_access(&mappings[i], &access[j]);
    return leave(CUDA_SUCCESS);
}

static CUresult fake_granularity(size_t *out, const CUmemAllocationProp *properties,
                                 CUmemAllocationGranularity_flags flags)
{
    (void)properties;
    (void)flags;
    *out = fake_vmm.granularity_bytes;
    return CUDA_SUCCESS;
}

static CUresult fake_attribute(int *out, CUdevice_attribute attribute, CUdevice device)
{
    (void)device;
    *out = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED &&
           fake_vmm.is_supported;
    return CUDA_SUCCESS;
}

static CUresult fake_current(CUcontext *out)
{
    *out = NULL;
    return CUDA_SUCCESS;
}

static CUresult fake_sentinel_allocate(CUdeviceptr *out, size_t size_bytes)
{
    (void)size_bytes;
    *out = 0x1000;
    return CUDA_SUCCESS;
}

static CUresult fake_sentinel_free(CUdeviceptr address)
{
    (void)address;
    pthread_mutex_lock(&lock);
    fake_vmm.waits++;
    fake_vmm.unmapped_unwaited = 0;
    return leave(CUDA_SUCCESS);
}

static __thread CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static CUresult fake_exchange_mode(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = capture_mode;

    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

void fake_vmm_install(size_t capacity_bytes)
{
    fake_vmm = (struct fake_vmm){
        .granularity_bytes = 2 << 20, .capacity_bytes = capacity_bytes, .is_supported = true};
    memset(memories, 0, sizeof(memories));
    watched_count = 0;
    next_base = ((CUdeviceptr)1 << 40) + fake_vmm.granularity_bytes;
    rs_driver = (struct rs_driver){
        .cuCtxGetCurrent = fake_current,
        .cuDeviceGetAttribute = fake_attribute,
        .cuMemAddressFree = fake_address_free,
        .cuMemAddressReserve = fake_reserve,
        .cuMemAlloc_v2 = fake_sentinel_allocate,
        .cuMemCreate = fake_create,
        .cuMemFree_v2 = fake_sentinel_free,
        .cuMemGetAllocationGranularity = fake_granularity,
        .cuMemMap = fake_map,
        .cuMemRelease = fake_release,
        .cuMemSetAccess = fake_set_access,
        .cuMemUnmap = fake_unmap,
        .cuThreadExchangeStreamCaptureMode = fake_exchange_mode,
    };
    capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

void fake_vmm_watch(CUdeviceptr address, size_t size_bytes, bool watch)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < watched_count && !watch; i++)
        if (watched[i].base == address)
            watched[i--] = watched[--watched_count];
    if (watch && watched_count < PIECES_MAX)
        watched[watched_count++] = (struct reservation){address, size_bytes};
    pthread_mutex_unlock(&lock);
}

bool fake_vmm_is_usable_by(int device, CUdeviceptr address, size_t size_bytes)
{
    size_t bytes = 0;

    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < fake_vmm.mappings; i++) {
        CUdeviceptr begin = mappings[i].address, end = begin + mappings[i].size_bytes;
        if (!(mappings[i].devices >> device & 1) ||
            !overlap(begin, end - begin, address, size_bytes))
            continue;
        begin = begin < address ? address : begin;
        end = end > address + size_bytes ? address + size_bytes : end;
        bytes += end - begin;
    }
    pthread_mutex_unlock(&lock);
    return bytes == size_bytes;
}

bool fake_vmm_is_usable(CUdeviceptr address, size_t size_bytes)
{
    return fake_vmm_is_usable_by(0, address, size_bytes);
}

bool fake_vmm_is_clean(void)
{
    return fake_vmm.wrong_calls == 0 && fake_vmm.created_bytes == 0 && fake_vmm.mappings == 0 &&
           fake_vmm.reservations == 0 && capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}
