/* SPDX-License-Identifier: Apache-2.0 */
/* A leaf whose memory outlives the context (a driver's pool, the process's own memory).  It keeps a
 * list of the blocks it handed out and frees them when the context ends, as the driver does with a
 * context's own allocations. */
#pragma once

#include "resource/record_slab.h"
#include "resource/resource.h"

struct rs_detached_leaf;
struct rs_detached_record;

typedef CUresult rs_detached_take(struct rs_detached_leaf *leaf, size_t size_bytes,
                                  enum rs_effort effort, CUdeviceptr *address);
typedef CUresult rs_detached_give(struct rs_detached_leaf *leaf, CUdeviceptr address,
                                  size_t size_bytes);

/* The calls of a kind of detached leaf.  They are called without the leaf's lock, and set relaxed
 * capture mode themselves. */
struct rs_detached_calls {
    /* Takes memory that is usable on every stream at once, and charges it to the account. */
    rs_detached_take *take;

    rs_detached_give *give; /* gives back a block that no work uses any more */

    /* Gives back a block when the leaf ends, which is mostly after its context's end.  After a
     * failure it is called again when the next leaf whose memory can outlive its context is made,
     * and when the device is trimmed (rs_mr_retry_unfinished). */
    rs_detached_give *give_late;

    /* Destroys the leaf's own objects, after all blocks that could be given back were.  False when
     * the driver refused; it is then called again later.  May be NULL. */
    bool (*end)(struct rs_detached_leaf *leaf);

    bool holds_more; /* the leaf holds more than its live blocks, and calls rs_detached_leaf_hold
                        itself */
};

/* The first member of a detached leaf. */
struct rs_detached_leaf {
    struct rs_mr base;
    const struct rs_detached_calls *calls;
    _Atomic uint64_t failures;

    /* The fields below, down to the held bytes, are protected by the lock. */
    bool has_ended;
    unsigned inside; /* the number of calls under way; after the context's end the last one to
                        return ends the leaf */
    struct rs_record_slab records;
    struct rs_detached_record *first;
    /* Written under the lock, also read without it (base/lock.h). */
    _Atomic size_t allocations, deallocations;
    _Atomic size_t live_bytes, held_bytes, peak_held_bytes;

    /* Used only by the thread that ends the leaf. */
    bool is_closed; /* `end` has succeeded */
};

extern const struct rs_mr_ops rs_detached_ops;

/* Begins a leaf.  First tries again to give back the memory that earlier leaves could not give
 * back. */
void rs_detached_leaf_init(struct rs_mr *mr, const struct rs_detached_calls *calls);

/* Sets the number of bytes that the leaf now holds from the driver.  The caller holds the lock. */
void rs_detached_leaf_hold(struct rs_detached_leaf *leaf, size_t held_bytes);

/* Called around driver calls that use the leaf's own objects.  Enter returns false when the context
 * has ended, so that the objects are gone; leave, which is called only after an enter that returned
 * true, returns false when the context has ended meanwhile. */
bool rs_detached_leaf_enter(struct rs_detached_leaf *leaf);
bool rs_detached_leaf_leave(struct rs_detached_leaf *leaf);
