/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting as cudaFree does, without spoiling a capture. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* Makes `context` current for one of our own calls where it is not; rs_context_leave undoes it. */
bool rs_context_enter(CUcontext context, CUresult *result);
void rs_context_leave(bool entered);
