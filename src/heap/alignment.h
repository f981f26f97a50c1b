/* SPDX-License-Identifier: Apache-2.0 */
/* Where blocks begin: what an allocator over larger upstream blocks must keep so that nobody can
 * tell its blocks from the driver's own. */
#pragma once

#include "heap/allocation.h"

enum {
    RS_LARGE_BYTES = 1 << 20,      /* requests from here on ... */
    RS_LARGE_ALIGNMENT = 64 << 10, /* ... for the pages of GPUDirect and dma-buf */
};

/* Of a block for a request of that many bytes; a power of two. */
static inline size_t rs_block_alignment(size_t size_bytes)
{
    return size_bytes >= RS_LARGE_BYTES ? RS_LARGE_ALIGNMENT : RS_BLOCK_ALIGNMENT;
}

/* Bytes from the address to the next one that is so aligned; 0 when it is itself. */
static inline size_t rs_lead_bytes(CUdeviceptr address, size_t alignment)
{
    return (size_t)(-address & (alignment - 1));
}
