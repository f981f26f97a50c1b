/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's real functions, typed, which are found in libcuda at the first use.
 *
 * They are called through `rs_driver`, never by name: a call by name would reach the hook that this
 * library exports. A member is NULL when the driver does not have the function. Unit tests assign
 * members. */
#pragma once

#include "base/check.h"
#include "driver/cuda.h"

#include <stdatomic.h>

struct rs_driver {
#define HOOK(symbol, name, since, until, stream, group, summary) __typeof__(&symbol) symbol;
#define CALL(symbol)                                             __typeof__(&symbol) symbol;
#include "driver/entry_points.def"
};

extern struct rs_driver rs_driver;

/* Slow path of rs_driver_ready: fills rs_driver from the process's libcuda.so.1, which it loads
 * first if `load` is set and it is not loaded.  Returns false when there is no libcuda.  Thread
 * safe. */
RS_COLD bool rs_driver_ready_slowly(bool load);

extern RS_HOT_DATA _Atomic bool rs_driver_is_ready;

/* True when rs_driver is filled.  Fills it at the first call, loading libcuda if `load` is set. */
static inline bool rs_driver_ready(bool load)
{
    return RS_LIKELY(atomic_load_explicit(&rs_driver_is_ready, memory_order_acquire)) ||
           rs_driver_ready_slowly(load);
}

/* True when the driver has the function. Loads libcuda if that was not done, since the program may
 * call a hook before it loads libcuda. */
#define RS_DRIVER_HAS(symbol) (rs_driver_ready(true) && rs_driver.symbol)

/* Between these two calls the thread is in relaxed capture mode: it may allocate and free while a
 * stream captures. In the other modes such calls fail and invalidate the capture (MEASURED.md,
 * "Semantics seen"). Each of the two calls takes 7 ns. */
CUstreamCaptureMode rs_capture_relax(void);
void rs_capture_restore(CUstreamCaptureMode mode);

static inline void rs_capture_relax_end(const CUstreamCaptureMode *mode)
{
    rs_capture_restore(*mode);
}

/* Relaxed capture mode from here to the end of the block. */
#define RS_RELAXED_GUARD()                                                                         \
    RS_GUARD(const CUstreamCaptureMode, rs_capture_relax_end) = rs_capture_relax()

/* Returns the driver's number of the allocation that contains `address`; 0: unknown.  The driver
 * never gives the same number to two allocations. */
unsigned long long rs_driver_allocation_id(CUdeviceptr address);

/* True when the driver knows the attribute and its value is not 0. */
bool rs_driver_device_has(CUdevice device, CUdevice_attribute attribute);

/* Returns the name of a result, as in "CUDA_ERROR_OUT_OF_MEMORY".  If the driver has no name for
 * it, writes "error N" to `buffer` and returns that. */
const char *rs_driver_error_name(CUresult result, char buffer[32]);

/* ---- the dynamic loader ---- */

/* A function like dlsym. Inside the preloaded library the name `dlsym` stands for our own hook, so
 * nothing may call it by name; all of our look-ups go through rs_real_dlsym. */
typedef void *rs_dlsym_function(void *handle, const char *symbol);

/* Returns libc's dlsym, or that of the next library that hooks dlsym.  Never NULL on glibc.
 * Thread safe, takes no lock. */
rs_dlsym_function *rs_real_dlsym(void);

/* True in a child that was forked while another thread was loading a library; the parent must have
 * called this function before the fork. In that child the load never ends, and any dlopen, even of
 * a loaded library, ends the process (an assertion in glibc's dl-open.c). Thread safe. */
bool rs_loader_is_stuck(void);

/* ---- the current context around the library's own calls, and primary contexts ---- */

/* Makes `context` current unless it is current already. Returns true if it pushed the context; this
 * result goes to rs_driver_context_leave, which then pops the context. *result is CUDA_SUCCESS if
 * `context` is current now, else the driver's error. */
bool rs_driver_context_enter(CUcontext context, CUresult *result);
void rs_driver_context_leave(bool entered);

static inline void rs_driver_context_guard_end(const bool *entered)
{
    rs_driver_context_leave(*entered);
}

/* Makes the context current from here to the end of the block. */
#define RS_CONTEXT_GUARD(context, result)                                                          \
    RS_GUARD(const bool, rs_driver_context_guard_end) = rs_driver_context_enter(context, result)

/* Returns the device's primary context, or NULL while nobody retains it; never starts it. If its
 * handle is not known yet, this function retains the context, to get the handle, and releases it.
 * The release may be the last one, if the program has released its own reference in between:
 * rs_context_primary (context/end.h) handles that. */
CUcontext rs_driver_active_primary(CUdevice device);

/* True while somebody retains the device's primary context. */
bool rs_driver_is_primary_active(CUdevice device);

/* Returns the primary context's handle that rs_driver_learn_primary found last; NULL: none was
 * found yet. The handle stays the same for the life of the process. Makes no driver call. */
CUcontext rs_driver_known_primary(CUdevice device);

/* Asks the driver for the handle of the primary context, as rs_driver_active_primary does if it is
 * not known. Returns NULL while nobody retains the context. */
CUcontext rs_driver_learn_primary(CUdevice device);

/* ---- placement of pages of managed and system memory ---- */

/* Advice and prefetches. They use the version of the function that the driver has: before 12.2 it
 * takes a device number, with -1 for the host; since then it takes a location.
 *
 * All of these calls are optimisations. The driver may refuse them, for memory that does not
 * migrate or a device that cannot do it, and callers may ignore that. The calls are made in relaxed
 * capture mode with `context` current. Thread safe. */

enum { RS_PLACEMENT_HOST = CU_DEVICE_CPU };

/* Gives advice about [address, address + size_bytes), which the driver applies to whole pages.
 * `where` is a device number or RS_PLACEMENT_HOST. Returns the driver's answer. */
CUresult rs_placement_advise(CUcontext context, CUdeviceptr address, size_t size_bytes,
                             CUmem_advise advice, int where);

/* Starts moving the range to `where` (as for rs_placement_advise), in the order of `stream`.
 * Returns the driver's answer. */
CUresult rs_placement_prefetch(CUcontext context, CUdeviceptr address, size_t size_bytes, int where,
                               CUstream stream);
