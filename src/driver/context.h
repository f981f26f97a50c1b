/* SPDX-License-Identifier: Apache-2.0 */
/* The current context around the library's own driver calls, and primary contexts. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* Makes `context` current unless it is.  Returns whether it was pushed, which
 * rs_driver_context_leave needs to undo it; *result is the driver's answer, CUDA_SUCCESS if
 * `context` is current now. */
bool rs_driver_context_enter(CUcontext context, CUresult *result);
void rs_driver_context_leave(bool entered);

/* Returns the device's primary context, or NULL while nobody retains it: it is not started for
 * this.  If its handle is not known yet, the function retains and releases it.  The program may
 * release its own reference in between, so this release may be the last one: rs_context_primary
 * (context/primary.h) handles that. */
CUcontext rs_driver_active_primary(CUdevice device);

/* True while somebody retains the device's primary context. */
bool rs_driver_is_primary_active(CUdevice device);

/* Returns the handle that rs_driver_learn_primary found last; it stays the same for the life of
 * the process.  NULL: none was found yet.  Makes no driver call. */
CUcontext rs_driver_known_primary(CUdevice device);

/* Asks the driver for the handle of the primary context, as rs_driver_active_primary does for an
 * unknown one.  NULL while nobody retains it. */
CUcontext rs_driver_learn_primary(CUdevice device);
