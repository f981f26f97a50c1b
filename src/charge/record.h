/* SPDX-License-Identifier: Apache-2.0 */
/* Records of allocations that the driver made for the program itself, which charge.c and
 * pool_allocation.c share. */
#pragma once

#include "charge/charge.h"

struct rs_charged {
    enum rs_charge_keys keys; /* the table that has it */
    unsigned long long key;
    enum rs_path path;
    int device;
    struct rs_context *context;  /* the allocation dies with it; NULL: it outlives contexts */
    struct rs_pool_record *pool; /* charged in place of the allocation; NULL: not stream-ordered */
    size_t size_bytes, charged_bytes;
    bool is_shared;             /* charged by address, with its neighbours (ledger/account.h) */
    bool is_packed;             /* charged with other small arrays */
    unsigned handles, mappings; /* references to virtual memory */
    unsigned calls;             /* under way that refer to the record */
};

/* A record with a reserved place in its table, so that entering it cannot fail; NULL when out of
 * host memory.  It is entered or dropped once. */
struct rs_charged *rs_charged_reserve(enum rs_charge_keys keys);
void rs_charged_enter(struct rs_charged *record, unsigned long long key);
void rs_charged_drop(struct rs_charged *record);
