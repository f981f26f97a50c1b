/* SPDX-License-Identifier: Apache-2.0 */
/* Records of memory that the driver made for the program itself, which charge.c and pool.c
 * share.  One lock protects them all; no driver call is made under it. */
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
