/* SPDX-License-Identifier: Apache-2.0 */
/* Devices' primary contexts.  No lock may be held. */
#pragma once

#include "context/context_record.h"

/* A reference to the device's primary context was given up, between
 * rs_context_ending_enter and _leave (context/exclusion.h): forgets the
 * context's memory if it was the last one, also where there is a new one already. */
void rs_context_released_primary(CUdevice device);

/* Gives one up that the library took for a moment. */
void rs_context_release_primary(CUdevice device);

/* The device's primary context, NULL while nobody holds it. */
CUcontext rs_context_primary(CUdevice device);

/* rs_context_end_begin (context/end.h) of the device's primary context. */
struct rs_context *rs_context_end_begin_primary(CUdevice device);

/* Before the current context is described. */
void rs_context_learn_current(CUcontext handle);
