/* SPDX-License-Identifier: Apache-2.0 */
/* A slab: an allocator of records of RS_RECORD_BYTES each, in pages of host memory.  Records are
 * recycled; the pages are unmapped only when the slab is destroyed.
 *
 * The owner's lock protects the slab.  Giving a record back never needs memory, so an operation
 * that only gives records back, such as a free that merges blocks, cannot fail. */
#pragma once

#include "base/lock.h"

#include <stdbool.h>
#include <stddef.h>

enum { RS_RECORD_BYTES = 64 }; /* a cache line */

struct rs_record_slab {
    void *recycled;          /* records given back, linked through their first word */
    char *fresh, *fresh_end; /* records of the newest page that were never taken */
    void *pages;             /* all pages, linked through their first word */
};

#define RS_RECORD_SLAB_INIT                                                                        \
    {                                                                                              \
        NULL, NULL, NULL, NULL                                                                     \
    }

/* Makes sure that the next two calls of rs_record_slab_take succeed.  Returns false when out of
 * host memory. */
bool rs_record_slab_reserve(struct rs_record_slab *slab);

/* Takes a record, whose contents are undefined.  Returns NULL when out of host memory. */
void *rs_record_slab_take(struct rs_record_slab *slab);

/* Gives a record back to the slab that it was taken from. */
void rs_record_slab_give(struct rs_record_slab *slab, void *record);

/* Take or give one record for a caller that does not hold `lock`, the owner's lock. */
static inline void *rs_record_slab_take_alone(struct rs_record_slab *slab, struct rs_mutex *lock)
{
    void *record;

    rs_mutex_lock(lock);
    record = rs_record_slab_take(slab);
    rs_mutex_unlock(lock);
    return record;
}

static inline void rs_record_slab_give_alone(struct rs_record_slab *slab, struct rs_mutex *lock,
                                             void *record)
{
    rs_mutex_lock(lock);
    rs_record_slab_give(slab, record);
    rs_mutex_unlock(lock);
}

/* Unmaps all pages, also those of records still in use. */
void rs_record_slab_destroy(struct rs_record_slab *slab);
