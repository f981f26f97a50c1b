/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's real functions, typed, found lazily in the loaded libcuda.
 *
 * They are called through `rs_driver` and never by name: a call by name would come back to our own
 * exported hook.  A member is NULL when the driver does not have it.  Unit tests assign members. */
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

/* Fills rs_driver from the process's libcuda.so.1, loading it where `load` is set and it is not
 * there yet.  False when there is none.  Cheap once done.  Thread safe. */
RS_COLD bool rs_driver_ready_slowly(bool load);

extern RS_HOT_DATA _Atomic bool rs_driver_is_ready;

static inline bool rs_driver_ready(bool load)
{
    return RS_LIKELY(atomic_load_explicit(&rs_driver_is_ready, memory_order_acquire)) ||
           rs_driver_ready_slowly(load);
}

/* For a hook that was reached before libcuda: what the driver's own function would be, or NULL. */
#define RS_DRIVER_HAS(symbol) (rs_driver_ready(true) && rs_driver.symbol)

/* Between these two the calling thread may allocate and free while some stream captures: without
 * them such a call fails and spoils the capture (MEASURED.md, "Semantics seen").  7 ns. */
CUstreamCaptureMode rs_capture_relax(void);
void rs_capture_restore(CUstreamCaptureMode mode);

/* The driver's number of the allocation that holds address, never used twice; 0: not known. */
unsigned long long rs_driver_allocation_id(CUdeviceptr address);

/* True when the device has that ability: the attribute is known and not 0. */
bool rs_driver_device_has(CUdevice device, CUdevice_attribute attribute);

/* "CUDA_ERROR_OUT_OF_MEMORY" or the number. */
const char *rs_driver_error_name(CUresult result, char buffer[32]);
