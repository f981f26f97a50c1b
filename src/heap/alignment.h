/* SPDX-License-Identifier: Apache-2.0 */
/* Alignment of blocks.  An allocator that cuts larger upstream blocks must keep it, so that its
 * blocks cannot be told from the driver's own. */
#pragma once

#include "heap/allocation.h"

enum {
    RS_LARGE_BYTES = 1 << 20,      /* a request is large from 1 MiB on */
    RS_LARGE_ALIGNMENT = 64 << 10, /* of a large block: the page size of GPUDirect and dma-buf */
};

/* Returns the alignment in bytes, a power of two, of a block for a request of size_bytes. */
static inline size_t rs_block_alignment(size_t size_bytes)
{
    return size_bytes >= RS_LARGE_BYTES ? RS_LARGE_ALIGNMENT : RS_BLOCK_ALIGNMENT;
}

/* Returns the bytes from `address` to the next multiple of `alignment` (a power of two); 0 when
 * `address` is one. */
static inline size_t rs_lead_bytes(CUdeviceptr address, size_t alignment)
{
    return (size_t)(-address & (alignment - 1));
}
