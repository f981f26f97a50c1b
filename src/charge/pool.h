/* SPDX-License-Identifier: Apache-2.0 */
/* The records of stream-ordered pools, which pool.c and pool_allocation.c share. */
#pragma once

#include "base/lock.h"
#include "charge/charge.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A driver's pool, or the memory that all graphs of a device hold. */
struct rs_pool_record {
    struct rs_pool_record *next; /* older */
    uint64_t number;             /* grows with each new record */
    CUmemoryPool handle;         /* NULL: the device's graphs */
    int device;
    bool host;                 /* a pool of host memory: not counted */
    bool destroyed;            /* the record lives until the pool's last allocation is freed */
    bool going;                /* cuMemPoolDestroy is under way */
    size_t live_bytes;         /* of the live allocations, rounded up as the driver does */
    size_t asked_bytes, count; /* of the live allocations: bytes asked for, and their number */
    size_t vain_bytes;         /* leaving bytes for which a wait was in vain */
    _Atomic size_t held_bytes; /* charged; written under the lock, also read without it */
    uint64_t tickets;          /* readings begun (rs_charge_pool_follow) */
    uint64_t applied;          /* the ticket of the latest reading that counts */
    uint64_t settled;          /* readings ended */
    size_t claimed_bytes;      /* free memory of the pool that calls under way count on */
    bool is_overcharged;       /* the pool held less than held_bytes at the latest reading */
    unsigned calls;            /* of the library, under way, that name the pool */
};

/* Protects the records, except fields that are said to be read without it.  No driver call that
 * waits is made under it. */
extern struct rs_mutex rs_charge_pools_lock;

/* The record of a pool that has not been destroyed (handle NULL: of the device's graphs).  NULL
 * when out of host memory.  The caller holds the lock. */
struct rs_pool_record *rs_charge_pool_find_or_add(CUmemoryPool handle, int device);

/* Asks the driver for the bytes that the pool holds, or, with `used`, for those of them in
 * allocations. False when the driver does not tell.  Without the lock. */
bool rs_charge_pool_read(const struct rs_pool_record *pool, bool used, size_t *bytes);

/* Reads the pool and charges it for the bytes that it holds now, in place of the bytes until now
 * and charged_bytes more.  Returns the bytes until now.  Without the lock. */
size_t rs_charge_pool_follow(struct rs_pool_record *pool, size_t charged_bytes);

/* A call that the record's `calls` counts is over.  Without the lock. */
void rs_charge_pool_let_go(struct rs_pool_record *pool);
