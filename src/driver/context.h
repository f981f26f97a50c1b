/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts around our own calls. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* Makes `context` current for one of our own calls where it is not; rs_driver_context_leave undoes
 * it. */
bool rs_driver_context_enter(CUcontext context, CUresult *result);
void rs_driver_context_leave(bool entered);

/* The device's primary context, NULL while nobody holds it: it is not started for this.  Where its
 * handle is not known yet, a reference is taken for a moment, and that may have become the last one
 * when it is given up again: rs_context_primary (context/context.h) sees to that. */
CUcontext rs_driver_active_primary(CUdevice device);

bool rs_driver_is_primary_active(CUdevice device);

/* What that found last, which is the handle for the life of the process; NULL: nothing yet.  No
 * driver call. */
CUcontext rs_driver_known_primary(CUdevice device);

/* The same, asked anew. */
CUcontext rs_driver_learn_primary(CUdevice device);
