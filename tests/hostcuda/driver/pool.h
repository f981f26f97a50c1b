/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools of the stream-ordered allocator. Where a block lies is the region's affair; a pool
 * keeps account, and holds on to freed memory up to its release threshold. The caller holds the
 * lock. */
#pragma once

#include "driver/memory.h"

struct hc_pool {
    int device;
    bool is_default;
    bool is_managed;   /* its memory migrates and takes nothing of the device by itself */
    bool is_host;      /* of host memory */
    bool is_destroyed; /* freed with its last allocation */
    uint64_t threshold_bytes;
    uint64_t used_bytes, used_high_bytes;
    uint64_t cached_bytes; /* held, in use by nobody */
    uint64_t small_bytes;  /* of allocations that share steps */
    uint64_t tail_bytes;   /* held behind allocations, up to a whole step */
    uint64_t reserved_high_bytes;
    unsigned reuse_flags;
    unsigned access; /* bit per device */
    struct hc_pool *next;
};

struct hc_pool *hc_pool_default(int device);
struct hc_pool *hc_pool_current(int device);
CUresult hc_pool_of(CUmemoryPool handle, struct hc_pool **pool);

CUresult hc_pool_take(struct hc_pool *pool, size_t bytes, struct hc_alloc **alloc);
/* The allocation goes back to its pool. */
void hc_pool_give(struct hc_alloc *alloc);

/* All pools of the device hold on to nothing; true if that made memory free. */
bool hc_pool_trim_all(int device);
