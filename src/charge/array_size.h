/* SPDX-License-Identifier: Apache-2.0 */
/* The device memory of a CUDA array, which the driver tells for sparse arrays alone. */
#pragma once

#include "driver/cuda.h"

#include <stddef.h>

/* Bytes of an array with `levels` mip levels: rows in multiples of 64 bytes and in groups of eight,
 * as textures are tiled, in units of 4 KiB.  0 for arrays without memory of their own (sparse, or
 * mapped later).  SIZE_MAX when the size overflows. */
size_t rs_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);
