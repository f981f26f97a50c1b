/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts around our own calls. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* Makes `context` current for one of our own calls where it is not; rs_context_leave undoes it. */
bool rs_context_enter(CUcontext context, CUresult *result);
void rs_context_leave(bool entered);

/* The device's primary context, NULL while nobody holds it: it is not started for this. */
CUcontext rs_context_active_primary(CUdevice device);
