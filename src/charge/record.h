/* SPDX-License-Identifier: Apache-2.0 */
/* Records of memory that the driver made for the program itself, which charge.c, pool.c and
 * pool_allocation.c share.  One lock protects them all; no driver call is made under it. */
#pragma once

#include "base/lock.h"
#include "charge/charge.h"
#include "ledger/account.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern struct rs_mutex rs_charge_lock;

/* ---- allocations ---- */

struct rs_charged {
    enum rs_charge_keys keys; /* the table that has it */
    unsigned long long key;
    enum rs_path path;
    int device;
    struct rs_context *context;  /* the allocation dies with it; NULL: it outlives contexts */
    struct rs_pool_record *pool; /* charged in place of the allocation; NULL: not stream-ordered */
    size_t size_bytes;
    struct rs_footprint_share share;
    bool is_shared;             /* charged by address, with its neighbours (ledger/account.h) */
    unsigned handles, mappings; /* references to virtual memory; others have one handle */
    unsigned calls;             /* under way that refer to the record */
};

/* All under the lock.  A record with a reserved place in its table, so that entering it cannot
 * fail; NULL when out of host memory.  It is entered or dropped once. */
struct rs_charged *rs_charged_reserve(enum rs_charge_keys keys);
void rs_charged_enter(struct rs_charged *record, unsigned long long key);
void rs_charged_drop(struct rs_charged *record);

/* ---- stream-ordered pools ---- */

/* A driver's pool, or the memory that all graphs of a device hold. */
struct rs_pool_record {
    struct rs_pool_record *next; /* older */
    CUmemoryPool handle;         /* NULL: the device's graphs */
    int device;
    bool host;                 /* a pool of host memory: not counted */
    bool destroyed;            /* the record lives until the pool's last allocation is freed */
    bool going;                /* cuMemPoolDestroy is under way */
    size_t live_bytes;         /* of the live allocations, rounded up as the driver does */
    size_t asked_bytes, count; /* of the live allocations: bytes asked for, and their number */
    size_t vain_bytes;         /* leaving bytes for which a wait was in vain */
    size_t held_bytes;         /* charged */
    _Atomic uint64_t tickets;  /* readings begun; without the lock */
    uint64_t applied;          /* the ticket of the latest reading that counts */
    uint64_t settled;          /* readings ended */
    size_t claimed_bytes;      /* free memory of the pool that calls under way count on */
    bool is_overcharged;       /* the pool held less than held_bytes at the latest reading */
    unsigned calls;            /* of the library, under way, that name the pool */
};

/* The record of a pool that has not been destroyed (handle NULL: of the device's graphs).  NULL
 * when out of host memory.  Under the lock. */
struct rs_pool_record *rs_pool_find_or_add(CUmemoryPool handle, int device);

/* Asks the driver for the bytes of the pool's free and used memory, or, with `used`, for those in
 * allocations.  False when the driver does not tell.  Without the lock. */
bool rs_pool_read(const struct rs_pool_record *pool, bool used, size_t *bytes);

/* What the driver said that the pool holds. */
struct rs_pool_reading {
    uint64_t ticket;
    bool told;
    size_t held_bytes;
};

/* Without the lock. */
struct rs_pool_reading rs_pool_begin_follow(struct rs_pool_record *pool);

/* The pool is charged for the bytes read, in place of those until now and charged_bytes more, which
 * a call of the program's had asked for and the driver has answered.  Under the lock. */
void rs_pool_follow(struct rs_pool_record *pool, struct rs_pool_reading reading,
                    size_t charged_bytes);

/* A call that the record's `calls` counts is over.  Under the lock. */
void rs_pool_let_go(struct rs_pool_record *pool);
