/* SPDX-License-Identifier: Apache-2.0 */
/* Records of what the program took from the driver by itself: shared by charge.c and
 * pool_allocation.c. */
#pragma once

#include "charge/charge.h"

struct rs_charged {
    enum rs_charge_keys keys; /* the table it is in */
    unsigned long long key;
    enum rs_path path;
    int device;
    struct rs_context *context;  /* it dies with this one; NULL: it belongs to the device */
    struct rs_pool_record *pool; /* of a stream-ordered allocation, which the pool is charged for */
    size_t size_bytes, charged_bytes;
    bool is_shared;             /* its small blocks are counted by address (footprint.h) */
    bool is_packed;             /* among the small ones without an address */
    unsigned handles, mappings; /* of virtual memory: what refers to it */
    unsigned calls;             /* under way, which refer to it too */
};

/* A record with room in its table, so that entering it cannot fail; NULL when out of host memory.
 * Entered or dropped once. */
struct rs_charged *rs_charged_reserve(enum rs_charge_keys keys);
void rs_charged_enter(struct rs_charged *record, unsigned long long key);
void rs_charged_drop(struct rs_charged *record);
