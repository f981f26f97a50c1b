/* SPDX-License-Identifier: Apache-2.0 */
/* An allocation, as resources, contexts and hooks hand it on. */
#pragma once

#include "base/check.h"
#include "driver/cuda.h"

#include <stddef.h>

enum {
    RS_BLOCK_ALIGNMENT = 512,        /* of every block, in bytes: the driver's own (MEASURED.md) */
    RS_DRIVER_GRANULARITY = 2 << 20, /* the driver's unit for large allocations, 2 MiB */
};

struct rs_block_record;

/* One allocation on its way down a stack and back.  Whoever holds it keeps address, size and
 * token, and deallocates with the same values.  `token` is private to the resource that made the
 * allocation (its record of the block, so that deallocation needs no search); adaptors pass it
 * through. */
struct rs_allocation {
    CUdeviceptr address;
    size_t size_bytes; /* as requested, not as rounded */
    void *token;
    struct rs_block_record *block; /* the block's record (resource/block.h), where a resource made
                                      one; NULL: none did.  An adaptor that changes neither address
                                      nor size passes it on, up and down */
};
