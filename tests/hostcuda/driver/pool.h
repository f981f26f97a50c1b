/* SPDX-License-Identifier: Apache-2.0 */
/* Memory pools of the stream-ordered allocator. The region decides where a block lies; a pool does
 * the accounting and keeps freed memory up to its release threshold. The caller holds the lock. */
#pragma once

#include "driver/memory.h"

struct hc_pool {
    int device;
    bool is_default;
    bool is_managed;      /* its memory migrates and takes nothing of the device by itself */
    bool is_host;         /* its memory is host memory */
    bool is_imported;     /* another process's, which allocates nothing here */
    bool is_exported;     /* it has been given to other processes */
    bool is_unexportable; /* no descriptor was left when it was first exported */
    int shared_fd;        /* file of a pool that can be shared; -1: it cannot */
    bool is_destroyed; /* destroyed by the program; the record is freed with its last allocation */
    uint64_t threshold_bytes;
    uint64_t used_bytes, used_high_bytes;
    uint64_t cached_bytes; /* held, in no allocation */
    uint64_t small_bytes;  /* bytes of allocations that share steps (HOSTCUDA_POOL_STEP) */
    uint64_t tail_bytes;   /* bytes held behind allocations, up to a whole step */
    uint64_t reserved_high_bytes;
    unsigned reuse_flags;
    unsigned access; /* bit per device */
    struct hc_alloc *imported;
    struct hc_pool *next;
};

struct hc_pool *hc_pool_default(int device);
struct hc_pool *hc_pool_current(int device);
struct hc_pool *hc_pool_new(int device);
CUresult hc_pool_of(CUmemoryPool handle, struct hc_pool **pool);

/* As cuMemPoolDestroy. */
void hc_pool_destroy(struct hc_pool *pool);

CUresult hc_pool_take(struct hc_pool *pool, size_t bytes, struct hc_alloc **alloc);
/* Gives an allocation back to its pool. */
void hc_pool_give(struct hc_alloc *alloc);

/* ---- pools of several processes (pool_ipc.c) ---- */

/* Gives a new pool the file by which other processes know it; false if there is none left. */
bool hc_pool_share(struct hc_pool *pool);

/* Frees an imported allocation, whose range is still there. */
void hc_pool_unimport(const struct hc_alloc *alloc);

/* Counts it if another process has the allocation imported, which must free it first. */
void hc_pool_check_freed(const struct hc_alloc *alloc);

/* Makes all pools of the device give up the memory that they keep; true if that freed any. */
bool hc_pool_trim_all(int device);
