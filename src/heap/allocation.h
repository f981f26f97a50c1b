/* SPDX-License-Identifier: Apache-2.0 */
/* An allocation, as all of the house hands it on. */
#pragma once

#include "base/arithmetic.h"
#include "base/check.h"
#include "driver/cuda.h"

#include <stddef.h>

enum {
    RS_BLOCK_ALIGNMENT = 512,        /* of every block: what the driver gives (MEASURED.md) */
    RS_DRIVER_GRANULARITY = 2 << 20, /* the driver's own unit for large allocations */
};

/* One allocation, as it travels down a stack and back.  The holder keeps address, size
 * and token and gives the same back; `token` is private to the resource that made the allocation
 * (its record of the block, so that deallocation needs no search).  Adaptors pass it through. */
struct rs_allocation {
    CUdeviceptr address;
    size_t size_bytes; /* as requested, not as rounded */
    void *token;
    void *holder; /* the holder's own record of the block, given with a deallocation to a resource
                     that keeps holders: the block may then come back from it with that record, at
                     the same address and of the same size.  NULL: the block is new to its holder */
};
