/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime layer: functions of the CUDA runtime that the library exports for programs linked
 * with a shared libcudart, and hands out to programs that look them up in one.  They are declared
 * here, since the runtime's header needs headers of its compiler. */
#pragma once

#include "rmmshim/rmmshim.h"

#include <stdbool.h>
#include <stddef.h>

typedef int rs_cuda_error; /* cudaError_t */

enum { RS_RUNTIME_ATTACH_GLOBAL = 1 }; /* cudaMemAttachGlobal */

/* True when the settings, which have been read, and tools let the layer serve. */
bool rs_runtime_layer_is_open(void);

/* True when the runtime makes a device's context current in cudaSetDevice, and not later.
 * `get_version` is its cudaRuntimeGetVersion, or NULL. */
bool rs_runtime_is_eager(void *get_version);

/* The answer to a look-up of `symbol`, one of the three below, in a runtime that the program opened
 * itself, where `real` was found: a function that serves requests that succeed at once and calls
 * `real` for the others; `real` itself where it is no function of a runtime. */
void *rs_runtime_by_handle(void *handle, const char *symbol, void *real);

/* The function at `address` with the type of `symbol`. */
#define RS_RUNTIME_CALL(symbol, address) ((__typeof__(symbol) *)(address))

RMMSHIM_API rs_cuda_error cudaMalloc(void **address, size_t size_bytes);
RMMSHIM_API rs_cuda_error cudaFree(void *address);
RMMSHIM_API rs_cuda_error cudaMallocManaged(void **address, size_t size_bytes, unsigned flags);
