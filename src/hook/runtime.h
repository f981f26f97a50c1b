/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime layer: functions of the CUDA runtime that we export for programs linked with a shared
 * libcudart, and hand out to those that look them up in one.  Declared here and not through its
 * header, which needs the compiler's own headers. */
#pragma once

#include "rmmshim/rmmshim.h"

#include <stdbool.h>
#include <stddef.h>

typedef int rs_cuda_error; /* cudaError_t */

enum { RS_RUNTIME_ATTACH_GLOBAL = 1 }; /* cudaMemAttachGlobal */

/* By the settings, which have been read. */
bool rs_runtime_layer_is_open(void);

/* True when the runtime whose cudaRuntimeGetVersion that is makes a device's context current in
 * cudaSetDevice, and not later. */
bool rs_runtime_is_eager(void *get_version);

/* What a look-up of `symbol`, one of the three below, in a runtime that the program opened itself
 * answers instead of `real`: a function that serves what succeeds at once and calls `real` for all
 * else; `real` itself where it is not a runtime's own. */
void *rs_runtime_by_handle(void *handle, const char *symbol, void *real);

RMMSHIM_API rs_cuda_error cudaMalloc(void **address, size_t size_bytes);
RMMSHIM_API rs_cuda_error cudaFree(void *address);
RMMSHIM_API rs_cuda_error cudaMallocManaged(void **address, size_t size_bytes, unsigned flags);
