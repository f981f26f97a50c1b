/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime layer: functions of the CUDA runtime that the library exports for programs linked
 * with a shared libcudart, and hands out to programs that look them up in one.  They are declared
 * here, since the runtime's header needs headers of its compiler. */
#pragma once

#include "rmmshim/rmmshim.h"

#include <stddef.h>

typedef int rs_cuda_error; /* cudaError_t */

/* Returns the answer to a look-up of `symbol`, one of the functions below, in a library that the
 * program opened itself and in which the look-up found `real`. If that library is a CUDA runtime,
 * the answer is a function that itself serves requests that succeed at once, and calls `real` for
 * all others. Otherwise, and for a fifth runtime in the process, the answer is `real`. */
void *rs_runtime_by_handle(void *handle, const char *symbol, void *real);

RMMSHIM_API rs_cuda_error cudaMalloc(void **address, size_t size_bytes);
RMMSHIM_API rs_cuda_error cudaFree(void *address);
RMMSHIM_API rs_cuda_error cudaMallocManaged(void **address, size_t size_bytes, unsigned flags);
