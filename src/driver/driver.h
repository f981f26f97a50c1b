/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's real functions, typed, found lazily in the loaded libcuda.
 *
 * They are called through `rs_driver`, never by name: a call by name would reach the hook that
 * this library exports.  A member is NULL when the driver does not have the function.  Unit
 * tests assign members. */
#pragma once

#include "driver/cuda.h"

#include "base/check.h"

#include <stdatomic.h>
#include <stdbool.h>

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

/* True when the driver has the function.  For a hook that may be called before libcuda is
 * loaded. */
#define RS_DRIVER_HAS(symbol) (rs_driver_ready(true) && rs_driver.symbol)

/* Between these two calls the thread captures in relaxed mode: it may allocate and free while
 * some stream captures.  In another mode these calls fail and spoil the capture (MEASURED.md,
 * "Semantics seen").  The pair of calls takes 7 ns. */
CUstreamCaptureMode rs_capture_relax(void);
void rs_capture_restore(CUstreamCaptureMode mode);

/* Returns the driver's number of the allocation that contains `address`, which is never used
 * twice; 0: unknown. */
unsigned long long rs_driver_allocation_id(CUdeviceptr address);

/* True when the driver knows the attribute and its value is not 0. */
bool rs_driver_device_has(CUdevice device, CUdevice_attribute attribute);

/* Returns the name of a result, "CUDA_ERROR_OUT_OF_MEMORY", or "error N", written to `buffer`,
 * when the driver has no name for it. */
const char *rs_driver_error_name(CUresult result, char buffer[32]);
