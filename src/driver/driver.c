/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/driver.h"

#include "base/lock.h"
#include "driver/loader.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

struct rs_driver rs_driver;

RS_HOT_DATA _Atomic bool rs_driver_is_ready;

static _Atomic bool is_filling; /* a thread is copying, or has copied, its table to rs_driver */

static void fill(struct rs_driver *driver, void *libcuda)
{
    rs_dlsym_function *find = rs_real_dlsym();
    void *address;

/* dlsym returns an object pointer; its bits are copied to the function pointer (see loader.c). */
#define FIND(symbol)                                                                               \
    address = find(libcuda, #symbol);                                                              \
    memcpy(&driver->symbol, &address, sizeof(address));
#define HOOK(symbol, name, since, until, stream, group, summary) FIND(symbol)
#define CALL(symbol)                                             FIND(symbol)
#include "driver/entry_points.def"
#undef FIND
}

/* Holds no lock across dlopen: another thread may hold the loader's own lock (it runs a
 * library's constructor) and be about to call this function. */
bool rs_driver_ready_slowly(bool load)
{
    void *libcuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    struct rs_driver found;

    if (!libcuda && load)
        libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!libcuda)
        return false;
    memset(&found, 0, sizeof(found));
    fill(&found, libcuda);
    if (!atomic_exchange(&is_filling, true)) {
        rs_driver = found; /* libcuda's reference is kept for the life of the process */
        atomic_store_explicit(&rs_driver_is_ready, true, memory_order_release);
        return true;
    }
    dlclose(libcuda);
    for (unsigned turn = 0; !atomic_load_explicit(&rs_driver_is_ready, memory_order_acquire);
         turn++)
        rs_pause(turn); /* the other thread is copying the table */
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
