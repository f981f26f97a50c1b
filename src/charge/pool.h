/* SPDX-License-Identifier: Apache-2.0 */
/* The records of stream-ordered pools: shared by pool.c and pool_allocation.c. */
#pragma once

#include "base/lock.h"
#include "charge/charge.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A driver's pool, or (graphs) what all graphs of a device hold. */
struct rs_pool_record {
    struct rs_pool_record *next; /* older */
    uint64_t number;             /* the later, the higher */
    CUmemoryPool handle;         /* NULL: of graphs */
    int device;
    bool host;                 /* of host memory: not counted */
    bool destroyed;            /* it lives until its last allocation is freed */
    bool going;                /* cuMemPoolDestroy is under way */
    size_t live_bytes;         /* of allocations, rounded */
    size_t asked_bytes, count; /* of these, as asked for, and how many */
    size_t vain_bytes;         /* leaving, and waited for in vain */
    _Atomic size_t held_bytes; /* charged; written under the lock, read without too */
    uint64_t tickets, applied; /* see rs_charge_pool_follow */
    uint64_t settled;          /* goes up with each reading */
    size_t claimed_bytes;      /* of what it keeps, by calls under way */
    bool is_overcharged;       /* it held less than that when it was read last */
    unsigned calls;            /* of ours under way, which name it */
};

/* Protects the records, but where they say otherwise.  No driver call waits under it. */
extern struct rs_mutex rs_charge_pools_lock;

/* The record of a pool (NULL: of the device's graphs) that has not been destroyed.  NULL when out
 * of host memory.  The caller holds the lock. */
struct rs_pool_record *rs_charge_pool_find_or_add(CUmemoryPool handle, int device);

/* Without the lock: what the driver says that the pool holds, or (used) of that what it has not
 * been given back.  False where it does not say. */
bool rs_charge_pool_read(const struct rs_pool_record *pool, bool used, size_t *bytes);

/* Without the lock: charges the pool for what it holds now, in place of charged_bytes more.
 * Returns what it was charged for until now. */
size_t rs_charge_pool_follow(struct rs_pool_record *pool, size_t charged_bytes);

/* Without the lock: a call that counted in the record's `calls` is over. */
void rs_charge_pool_let_go(struct rs_pool_record *pool);
