/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime door: functions of the CUDA runtime that we export for programs linked with a shared
 * libcudart.  Declared here and not through its header, which needs the compiler's own headers. */
#pragma once

#include "rmmshim/rmmshim.h"

#include <stddef.h>

typedef int rs_cuda_error; /* cudaError_t */

RMMSHIM_API rs_cuda_error cudaMalloc(void **address, size_t size_bytes);
RMMSHIM_API rs_cuda_error cudaFree(void *address);
RMMSHIM_API rs_cuda_error cudaMallocManaged(void **address, size_t size_bytes, unsigned flags);
