/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/replay/device.h"

#include "base/check.h"
#include "base/hash_table.h"
#include "driver/driver.h"
#include "resource/ranges.h"

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define UNUSED __attribute__((unused))

/* Defines a driver function that succeeds and does nothing. */
#define SUCCEEDS(name, ...)                                                                        \
    static CUresult name(__VA_ARGS__)                                                              \
    {                                                                                              \
        return CUDA_SUCCESS;                                                                       \
    }

enum {
    LOOK_NS = 500, /* how long the library takes to read the clock and make the driver call beside
                      it */
    LATE_NS = 55 * 1000, /* the delay at the end of a sleep: Linux's timer slack is 50 us */
    UNIT_BYTES = 2 << 20,
    SHARING_BYTES = 1 << 20, /* requests up to this size share units (MEASURED.md) */
    THREAD_BITS = 32,
};

/* Where addresses begin: of small and large blocks of cuMemAlloc, and of reserved ranges. */
#define SPACE_BYTES ((size_t)1 << 45)
#define SMALL_BASE  ((CUdeviceptr)2 << 45)
#define LARGE_BASE  ((CUdeviceptr)3 << 45)
#define MAPPED_BASE ((CUdeviceptr)4 << 45)

/* A range of addresses and the blocks into which it is cut. */
struct space {
    struct rs_blocks blocks;
    struct rs_block_index indexes[RS_BLOCK_GROUPS];
    struct rs_block first;
};

static struct {
    bool is_installed;
    uint64_t now_ns; /* never goes back, also from one play to the next */
    uint64_t lag_ns;
    uint64_t gpu_ns, idle_ns; /* when the GPU's work ends; how long it had none */
    uint32_t thread;
    size_t capacity_bytes, taken_bytes;
    struct space small, large;
    struct rs_hash_table live; /* the live struct rs_blocks, by address */
    CUdeviceptr next_reserved;
} device;

/* ---- time ---- */

/* The linker option --wrap makes the whole command call these in place of libc's functions. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_nanosleep(const struct timespec *delay, struct timespec *left);

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __real_nanosleep(const struct timespec *delay, struct timespec *left);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    if (!device.is_installed)
        return __real_clock_gettime(clock, out);
    device.now_ns += LOOK_NS;
    out->tv_sec = (time_t)(device.now_ns / 1000000000u);
    out->tv_nsec = (long)(device.now_ns % 1000000000u);
    return 0;
}

int __wrap_nanosleep(const struct timespec *delay, struct timespec *left)
{
    if (!device.is_installed)
        return __real_nanosleep(delay, left);
    device.now_ns += LATE_NS + (uint64_t)delay->tv_sec * 1000000000u + (uint64_t)delay->tv_nsec;
    return 0;
}

void replay_device_pass(uint64_t ns, uint32_t thread)
{
    device.thread = thread;
    device.now_ns += device.lag_ns ? ns / 2 : ns;
    if (device.gpu_ns < device.now_ns) {
        device.idle_ns += device.now_ns - device.gpu_ns;
        device.gpu_ns = device.now_ns;
    }
    device.gpu_ns += device.lag_ns ? ns : 0;
    device.now_ns = rs_max(device.now_ns + device.lag_ns, device.gpu_ns) - device.lag_ns;
}

uint64_t replay_device_idle_ns(void)
{
    return device.idle_ns;
}

/* ---- contexts, streams and events ---- */

static CUresult get_current(CUcontext *out)
{
    *out = REPLAY_CONTEXT;
    return CUDA_SUCCESS;
}

SUCCEEDS(exchange_mode, UNUSED CUstreamCaptureMode *mode)

static CUresult event_create(CUevent *out, UNUSED unsigned flags)
{
    *out = calloc(1, sizeof(uint64_t)); /* the time at which the event is done */
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult event_destroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

static CUresult event_record(UNUSED CUcontext context, CUevent event)
{
    *(uint64_t *)(void *)event = device.gpu_ns;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    return *(uint64_t *)(void *)event <= device.now_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* The library's own stream, which the program's work does not hold up. */
static CUresult stream_create(CUstream *out, UNUSED unsigned flags)
{
    *out = (CUstream)(uintptr_t)0x2000;
    return CUDA_SUCCESS;
}

SUCCEEDS(stream_done, UNUSED CUstream stream)

static CUresult stream_is_capturing(UNUSED CUstream stream, CUstreamCaptureStatus *status)
{
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* Stores the stream's number: 1 for the default stream, and for others their number in the sequence
 * less 1 (struct sequence_event).  Each thread has a per-thread default stream of its own, whose
 * number is the thread's, shifted above all these. */
static CUresult stream_number(CUstream stream, unsigned long long *number)
{
    *number = stream == CU_STREAM_PER_THREAD ? (uint64_t)device.thread << THREAD_BITS
                                             : rs_max((uintptr_t)stream, 2) - 1;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

static bool take_bytes(size_t bytes)
{
    if (bytes > device.capacity_bytes - rs_min(device.taken_bytes, device.capacity_bytes))
        return false;
    device.taken_bytes += bytes;
    return true;
}

/* Finds a place for a request.  Small requests are placed closely, as in the blocks of 2 MiB that
 * they share in the driver; large ones go to the lowest address that has room. */
static bool place(struct space *space, const struct rs_block_request *request,
                  struct rs_allocation *out)
{
    struct rs_block *block = &space->first;

    if (space == &device.small)
        return rs_blocks_take(&space->blocks, request, out);
    while (block && !(block->is_free && block->size_bytes >= request->rounded_bytes))
        block = block->after;
    if (block)
        rs_blocks_hand_out(&space->blocks, block, 0, request, out);
    return block;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes)
{
    bool is_small = bytes <= SHARING_BYTES;
    struct space *space = is_small ? &device.small : &device.large;
    struct rs_block_request request;
    struct rs_allocation block;

    if (!rs_block_request_init(&request, bytes, is_small ? RS_BLOCK_ALIGNMENT : UNIT_BYTES, true) ||
        !rs_record_slab_reserve(&space->blocks.records) || !rs_hash_reserve(&device.live, 1) ||
        !take_bytes(request.rounded_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!place(space, &request, &block)) {
        device.taken_bytes -= request.rounded_bytes;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (void)rs_hash_put(&device.live, block.address, block.token);
    *out = block.address;
    return CUDA_SUCCESS;
}

static CUresult give_in_order(CUdeviceptr address, UNUSED CUstream stream)
{
    struct rs_block *block = rs_hash_take(&device.live, address);

    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    device.taken_bytes -= block->size_bytes;
    rs_blocks_give(address < LARGE_BASE ? &device.small.blocks : &device.large.blocks, block);
    return CUDA_SUCCESS;
}

/* Frees as cuMemFree does, which waits for all work. */
static CUresult give_waiting(CUdeviceptr address)
{
    device.now_ns = rs_max(device.now_ns, device.gpu_ns);
    return give_in_order(address, NULL);
}

static CUresult granularity(size_t *out, UNUSED const CUmemAllocationProp *properties,
                            UNUSED CUmemAllocationGranularity_flags flags)
{
    *out = UNIT_BYTES;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(int *out, CUdevice_attribute attribute, UNUSED CUdevice number)
{
    *out = attribute == CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *out, size_t bytes, UNUSED size_t alignment,
                        UNUSED CUdeviceptr hint, UNUSED unsigned long long flags)
{
    *out = device.next_reserved;
    device.next_reserved += bytes;
    return CUDA_SUCCESS;
}

/* Only the size of the memory is needed later, so the size is the handle. */
static CUresult create(CUmemGenericAllocationHandle *out, size_t bytes,
                       UNUSED const CUmemAllocationProp *properties,
                       UNUSED unsigned long long flags)
{
    *out = bytes;
    return take_bytes(bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    device.taken_bytes -= (size_t)handle;
    return CUDA_SUCCESS;
}

SUCCEEDS(map, UNUSED CUdeviceptr address, UNUSED size_t bytes, UNUSED size_t offset,
         UNUSED CUmemGenericAllocationHandle handle, UNUSED unsigned long long flags)

/* Also used to free reserved addresses, which are never reserved again. */
SUCCEEDS(unmap, UNUSED CUdeviceptr address, UNUSED size_t bytes)

SUCCEEDS(set_access, UNUSED CUdeviceptr address, UNUSED size_t bytes,
         UNUSED const CUmemAccessDesc *access, UNUSED size_t count)

/* ---- the driver ---- */

static void open_space(struct space *space, CUdeviceptr base)
{
    if (space->first.address)
        return;
    space->first = (struct rs_block){.address = base, .size_bytes = SPACE_BYTES};
    space->blocks.free_blocks = space->indexes;
    rs_blocks_insert_free(&space->blocks, &space->first);
}

void replay_device_install(uint64_t lag_ns, size_t capacity_bytes)
{
    open_space(&device.small, SMALL_BASE);
    open_space(&device.large, LARGE_BASE);
    device.next_reserved = MAPPED_BASE;
    device.lag_ns = lag_ns;
    device.capacity_bytes = capacity_bytes;
    device.is_installed = true;
    device.gpu_ns = device.now_ns;
    device.idle_ns = 0;
    rs_driver = (struct rs_driver){
        .cuCtxGetCurrent = get_current,
        .cuCtxRecordEvent = event_record,
        .cuDeviceGetAttribute = get_attribute,
        .cuEventCreate = event_create,
        .cuEventDestroy_v2 = event_destroy,
        .cuEventQuery = event_query,
        .cuMemAddressFree = unmap,
        .cuMemAddressReserve = reserve,
        .cuMemAlloc_v2 = allocate,
        .cuMemCreate = create,
        .cuMemFreeAsync = give_in_order,
        .cuMemFree_v2 = give_waiting,
        .cuMemGetAllocationGranularity = granularity,
        .cuMemMap = map,
        .cuMemRelease = release,
        .cuMemSetAccess = set_access,
        .cuMemUnmap = unmap,
        .cuStreamCreate = stream_create,
        .cuStreamGetId = stream_number,
        .cuStreamIsCapturing = stream_is_capturing,
        .cuStreamQuery = stream_done,
        .cuStreamSynchronize = stream_done,
        .cuThreadExchangeStreamCaptureMode = exchange_mode,
    };
}

void replay_device_remove(void)
{
    device.is_installed = false;
}
