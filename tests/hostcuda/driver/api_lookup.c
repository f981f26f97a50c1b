/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: the driver's version, and functions by name, version and flags. */
#include "driver/call.h"
#include "driver/config.h"
#include "driver/hide.h"
#include "hostcuda.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

HC_API CUresult cuDriverGetVersion(int *version)
{
    HC_ENTER_EARLY(cuDriverGetVersion);
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = hc_config.driver_version;
    return CUDA_SUCCESS;
}

/* The newest row of that name that the version allows; with per_thread, its own variant first. */
static const struct hc_entry *look_up(const char *name, int version, bool per_thread,
                                      CUdriverProcAddressQueryResult *status)
{
    const struct hc_entry *best = NULL;
    bool is_known = false;
    for (unsigned i = 0; i < hc_entry_count; i++) {
        const struct hc_entry *entry = &hc_entries[i];
        if (!entry->since || strcmp(entry->base, name) || !hc_entry_is_offered(entry))
            continue;
        if (entry->per_thread && !per_thread)
            continue;
        is_known = true;
        if (entry->since > version)
            continue;
        if (!best || entry->per_thread > best->per_thread ||
            (entry->per_thread == best->per_thread && entry->since > best->since))
            best = entry;
    }
    *status = best       ? CU_GET_PROC_ADDRESS_SUCCESS
              : is_known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                         : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best;
}

/* The test runtime asks for these as for any other name; a real driver has none. */
static void *look_up_note(const char *name)
{
    static const struct {
        const char *name;
        void (*address)(void);
    } notes[] = {
        {"hostcuda_note_allocate", (void (*)(void))hostcuda_note_allocate},
        {"hostcuda_note_free", (void (*)(void))hostcuda_note_free},
        {"hostcuda_note_allocate_on", (void (*)(void))hostcuda_note_allocate_on},
        {"hostcuda_note_free_on", (void (*)(void))hostcuda_note_free_on},
        {"hostcuda_note_free_failed", (void (*)(void))hostcuda_note_free_failed},
        {"hostcuda_request_begin", (void (*)(void))hostcuda_request_begin},
        {"hostcuda_request_end", (void (*)(void))hostcuda_request_end},
    };
    void *address = NULL;
    for (size_t i = 0; i < sizeof(notes) / sizeof(notes[0]); i++) {
        if (!strcmp(notes[i].name, name))
            memcpy(&address, &notes[i].address, sizeof(address));
    }
    return address;
}

/* Jumps to the entry points, for HOSTCUDA_INNER: made once, at the first look-up. */
#if defined(__x86_64__)
static const unsigned char jump[] = {0xff, 0x25, 0x02, 0, 0, 0, 0x90, 0x90}; /* jmp *2(%rip) */
#elif defined(__aarch64__)
static const unsigned char jump[] = {0x50, 0, 0, 0x58, 0, 0x02, 0x1f, 0xd6}; /* ldr x16; br x16 */
#endif

struct inner {
    unsigned char jump[sizeof(jump)];
    void *target;
};

static struct inner *inners;

static void make_inners(void)
{
    size_t bytes = hc_entry_count * sizeof(struct inner);
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return;
    inners = memory;
    for (unsigned i = 0; i < hc_entry_count; i++) {
        memcpy(inners[i].jump, jump, sizeof(jump));
        memcpy(&inners[i].target, &hc_entries[i].address, sizeof(inners[i].target));
    }
    __builtin___clear_cache((char *)memory, (char *)memory + bytes);
}

static void *inner_of(const struct hc_entry *entry)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_inners);
    return inners ? inners[entry - hc_entries].jump : NULL;
}

static CUresult get_address(const char *name, void **out, int version, cuuint64_t flags,
                            CUdriverProcAddressQueryResult *status)
{
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !out || (flags & ~known) || flags == known || version > hc_config.driver_version)
        return CUDA_ERROR_INVALID_VALUE;
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    const struct hc_entry *entry = look_up(name, version, per_thread, status);
    *out = entry ? NULL : look_up_note(name);
    if (entry && hc_config.inner)
        *out = inner_of(entry);
    else if (entry)
        memcpy(out, &entry->address, sizeof(*out));
    else if (*out)
        *status = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
}

HC_API CUresult cuGetProcAddress(const char *name, void **out, int version, cuuint64_t flags)
{
    HC_ENTER_EARLY(cuGetProcAddress);
    CUdriverProcAddressQueryResult status;
    CUresult result = get_address(name, out, version, flags, &status);
    return !result && !*out ? CUDA_ERROR_NOT_FOUND : result;
}

HC_API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    HC_ENTER_EARLY(cuGetProcAddress_v2);
    CUdriverProcAddressQueryResult ignored;
    return get_address(name, out, version, flags, status ? status : &ignored);
}

/* The driver's private tables: this device has none. */
HC_API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    HC_ENTER_EARLY(cuGetExportTable);
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
