/* SPDX-License-Identifier: Apache-2.0 */
/* What a CUDA array takes of the device: the driver tells only for sparse ones. */
#pragma once

#include "driver/cuda.h"

#include <stddef.h>

/* Bytes of an array with that many mip levels: rows of 64 bytes in groups of eight, as textures are
 * tiled, in units of 64 KiB.  0 for arrays without memory of their own (sparse, mapped later).
 * SIZE_MAX for sizes that no memory has. */
size_t rs_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);
