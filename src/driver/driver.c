/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/driver.h"

#include "base/lock.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the dynamic loader ---- */

/* Versions of the symbol dlsym, newest first: since glibc 2.34 dlsym is in libc itself. The other
 * two are its first versions on AArch64 and x86-64. Another library that hooks dlsym, and is loaded
 * after ours, may define only those. */
static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};

RS_BEFORE_SANITIZERS rs_dlsym_function *rs_real_dlsym(void)
{
    static _Atomic(void *) found;
    void *symbol = atomic_load_explicit(&found, memory_order_relaxed);
    rs_dlsym_function *function;

    for (size_t i = 0; !symbol && i < RS_ARRAY_LENGTH(versions); i++)
        symbol = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    atomic_store_explicit(&found, symbol, memory_order_relaxed);
    /* ISO C has no cast from an object pointer to a function pointer; POSIX promises that their
     * bits are the same. */
    memcpy(&function, &symbol, sizeof(function));
    return function;
}

/* True while the dynamic loader changes its list of objects. glibc exports this state for
 * debuggers. */
static bool is_loading(void)
{
    return *(const volatile __typeof__(_r_debug.r_state) *)&_r_debug.r_state != RT_CONSISTENT;
}

/* is_loading may see a load by another thread of the child, or one that the fork interrupted. The
 * first kind ends: its thread holds a lock of the loader (glibc resets it in a child), for which
 * dladdr waits, so after a dladdr that load is over. The second kind never ends: if LOOKS calls of
 * dladdr do not help, the loader is stuck. */
bool rs_loader_is_stuck(void)
{
    enum { LOOKS = 100 };
    static _Atomic pid_t first_process;
    pid_t first = atomic_load_explicit(&first_process, memory_order_relaxed), process;
    Dl_info info;

    if (RS_LIKELY(first && !is_loading()))
        return false;
    process = getpid();
    if (first == 0)
        atomic_store_explicit(&first_process, first = process, memory_order_relaxed);
    if (first == process)
        return false;
    for (int i = 0; i < LOOKS; i++) {
        (void)dladdr(versions, &info);
        if (!is_loading())
            return false;
    }
    return true;
}

/* ---- the driver's functions ---- */

struct rs_driver rs_driver;

RS_HOT_DATA _Atomic bool rs_driver_is_ready;

/* Set by the first thread that copies the functions that it found to rs_driver. */
static _Atomic bool is_filling;

static void fill_functions(struct rs_driver *driver, void *libcuda)
{
    rs_dlsym_function *find = rs_real_dlsym();
    void *address;

/* Finds one function. dlsym returns an object pointer, whose bits are copied to the function
 * pointer (see rs_real_dlsym).
 */
#define FIND(symbol)                                                                               \
    address = find(libcuda, #symbol);                                                              \
    memcpy(&driver->symbol, &address, sizeof(address));
#define HOOK(symbol, name, since, until, stream, group, summary) FIND(symbol)
#define CALL(symbol)                                             FIND(symbol)
#include "driver/entry_points.def"
#undef FIND
}

/* No lock is held during dlopen: another thread may hold the loader's lock, since it runs a
 * library's constructor, and may be about to call this function. */
bool rs_driver_ready_slowly(bool load)
{
    void *libcuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    struct rs_driver found;

    if (!libcuda && load)
        libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda)
        return false;
    memset(&found, 0, sizeof(found));
    fill_functions(&found, libcuda);
    if (!atomic_exchange(&is_filling, true)) {
        rs_driver = found; /* the reference to libcuda is never given back */
        atomic_store_explicit(&rs_driver_is_ready, true, memory_order_release);
        return true;
    }
    dlclose(libcuda);
    for (unsigned turn = 0; !atomic_load_explicit(&rs_driver_is_ready, memory_order_acquire);
         turn++)
        rs_pause(turn); /* the other thread is copying the functions */
    return true;
}

CUstreamCaptureMode rs_capture_relax(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    if (rs_driver.cuThreadExchangeStreamCaptureMode)
        (void)rs_driver.cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void rs_capture_restore(CUstreamCaptureMode mode)
{
    if (rs_driver.cuThreadExchangeStreamCaptureMode)
        (void)rs_driver.cuThreadExchangeStreamCaptureMode(&mode);
}

unsigned long long rs_driver_allocation_id(CUdeviceptr address)
{
    unsigned long long id = 0;

    if (rs_driver.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) !=
        CUDA_SUCCESS)
        return 0;
    return id;
}

bool rs_driver_device_has(CUdevice device, CUdevice_attribute attribute)
{
    int value = 0;

    return rs_driver.cuDeviceGetAttribute &&
           rs_driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
}

const char *rs_driver_error_name(CUresult result, char buffer[32])
{
    const char *name = NULL;

    if (rs_driver.cuGetErrorName && rs_driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
        return name;
    snprintf(buffer, 32, "error %d", (int)result);
    return buffer;
}

/* ---- contexts ---- */

enum { PRIMARIES_MAX = 64 };

bool rs_driver_context_enter(CUcontext context, CUresult *result)
{
    CUcontext current = NULL;

    *result = rs_driver.cuCtxGetCurrent(&current);
    if (*result != CUDA_SUCCESS || current == context)
        return false;
    *result = rs_driver.cuCtxPushCurrent_v2(context);
    return *result == CUDA_SUCCESS;
}

void rs_driver_context_leave(bool entered)
{
    CUcontext popped;

    if (entered)
        (void)rs_driver.cuCtxPopCurrent_v2(&popped);
}

/* Handles of primary contexts, by device. A primary context that was reset, or released by all,
 * comes back with the same handle. (This was measured for a reset, and is assumed for a
 * release.) */
static _Atomic(CUcontext) primaries[PRIMARIES_MAX];

bool rs_driver_is_primary_active(CUdevice device)
{
    unsigned flags;
    int active = 0;

    return rs_driver.cuDevicePrimaryCtxGetState && rs_driver.cuDevicePrimaryCtxRelease_v2 &&
           rs_driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

CUcontext rs_driver_known_primary(CUdevice device)
{
    return device >= 0 && device < PRIMARIES_MAX ? atomic_load(&primaries[device]) : NULL;
}

CUcontext rs_driver_learn_primary(CUdevice device)
{
    CUcontext primary = NULL;

    /* Retaining an inactive primary context would start it. */
    if (!rs_driver_is_primary_active(device) ||
        rs_driver.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return NULL;
    (void)rs_driver.cuDevicePrimaryCtxRelease_v2(device);
    if (device < PRIMARIES_MAX)
        atomic_store(&primaries[device], primary);
    return primary;
}

CUcontext rs_driver_active_primary(CUdevice device)
{
    CUcontext known = rs_driver_known_primary(device);

    if (!known)
        return rs_driver_learn_primary(device);
    return rs_driver_is_primary_active(device) ? known : NULL;
}

/* ---- placement of pages ---- */

static CUmemLocation location_of(int where)
{
    return where == RS_PLACEMENT_HOST
               ? (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST}
               : (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = where};
}

CUresult rs_placement_advise(CUcontext context, CUdeviceptr address, size_t size_bytes,
                             CUmem_advise advice, int where)
{
    CUresult result;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(context, &result);

    if (result != CUDA_SUCCESS)
        return result;
    if (rs_driver.cuMemAdvise_v2)
        return rs_driver.cuMemAdvise_v2(address, size_bytes, advice, location_of(where));
    if (rs_driver.cuMemAdvise)
        return rs_driver.cuMemAdvise(address, size_bytes, advice, where);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult rs_placement_prefetch(CUcontext context, CUdeviceptr address, size_t size_bytes, int where,
                               CUstream stream)
{
    CUresult result;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(context, &result);

    if (result != CUDA_SUCCESS)
        return result;
    if (rs_driver.cuMemPrefetchAsync_v2)
        return rs_driver.cuMemPrefetchAsync_v2(address, size_bytes, location_of(where), 0, stream);
    if (rs_driver.cuMemPrefetchAsync)
        return rs_driver.cuMemPrefetchAsync(address, size_bytes, where, stream);
    return CUDA_ERROR_NOT_SUPPORTED;
}
