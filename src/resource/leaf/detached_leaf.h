/* SPDX-License-Identifier: Apache-2.0 */
/* A detached leaf: one whose memory outlives the context, because it comes from a driver's pool or
 * is the process's own.  The leaf keeps a list of its live blocks, and frees them when the context
 * ends, as the driver does with a context's own allocations. */
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

    /* Gives back a block that is still live when the leaf ends, mostly after the context's end.
     * After a failure rs_mr_retry_unfinished calls this again. */
    rs_detached_give *give_late;

    /* Destroys the leaf's own objects when the leaf ends, after the blocks were given back.
     * Returns false when the driver refused; it is then called again later.  May be NULL. */
    bool (*end)(struct rs_detached_leaf *leaf);

    bool holds_more; /* the leaf holds more than its live blocks, so it must itself call
                        rs_detached_leaf_hold */
};

/* The first member of a detached leaf. */
struct rs_detached_leaf {
    struct rs_mr base;
    const struct rs_detached_calls *calls;
    _Atomic uint64_t failures;

    /* The fields below, down to the held bytes, are protected by the lock. */
    bool has_ended;  /* the context has ended, or the leaf is being destroyed */
    unsigned inside; /* the number of calls under way; once the context has ended, the last of these
                        calls ends the leaf */
    struct rs_record_slab records;
    struct rs_detached_record *first; /* the list of live blocks */
    /* Written under the lock, also read without it (base/lock.h). */
    _Atomic size_t allocations, deallocations;
    _Atomic size_t live_bytes, held_bytes, peak_held_bytes;

    /* Used only by the thread that ends the leaf. */
    bool is_closed; /* calls->end has succeeded */
};

extern const struct rs_mr_ops rs_detached_ops;

/* Initialises a leaf.  Before that, calls rs_mr_retry_unfinished for earlier leaves. */
void rs_detached_leaf_init(struct rs_mr *mr, const struct rs_detached_calls *calls);

/* Notes how many bytes the leaf holds from the driver now.  The caller holds the lock. */
void rs_detached_leaf_hold(struct rs_detached_leaf *leaf, size_t held_bytes);

/* Called around driver calls that use the leaf's own objects.  rs_detached_leaf_enter returns false
 * when the context has ended: the objects may be gone then, and rs_detached_leaf_leave must not be
 * called.  rs_detached_leaf_leave returns false when the context has ended meanwhile. */
bool rs_detached_leaf_enter(struct rs_detached_leaf *leaf);
bool rs_detached_leaf_leave(struct rs_detached_leaf *leaf);
