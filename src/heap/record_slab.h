/* SPDX-License-Identifier: Apache-2.0 */
/* Records of one size, out of pages of host memory; recycled, given back only at the end.
 *
 * Needs a lock of its owner's.  Giving a record back never needs memory, so what only releases
 * records (a free that merges blocks) cannot fail. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum { RS_RECORD_BYTES = 64 }; /* a cache line */

struct rs_record_slab {
    void *recycled;          /* list of records given back, through their first word */
    char *fresh, *fresh_end; /* records of the newest page that were never used */
    void *pages;             /* list of pages, through their first word */
};

#define RS_RECORD_SLAB_INIT                                                                        \
    {                                                                                              \
        NULL, NULL, NULL, NULL                                                                     \
    }

/* Makes sure that the next two takes succeed.  False when out of host memory. */
bool rs_record_slab_reserve(struct rs_record_slab *slab);

/* A record, not cleared; NULL when out of host memory. */
void *rs_record_slab_take(struct rs_record_slab *slab);

void rs_record_slab_give(struct rs_record_slab *slab, void *record);

/* Gives all pages back, also those of records still in use. */
void rs_record_slab_destroy(struct rs_record_slab *slab);
