/* SPDX-License-Identifier: Apache-2.0 */
/* A leaf whose memory outlives the context (a driver's pool, the process's own memory): it keeps a
 * list of what it handed out, so that it can free it when the context ends, as the driver does with
 * a context's own allocations. */
#pragma once

#include "base/counter.h"
#include "base/lock.h"
#include "heap/record_slab.h"
#include "resource/resource.h"
#include "resource/unfinished.h"

struct rs_detached_leaf;
struct rs_detached_record;

typedef CUresult rs_detached_take(struct rs_detached_leaf *leaf, size_t size_bytes,
                                  enum rs_effort effort, CUdeviceptr *address);
typedef CUresult rs_detached_give(struct rs_detached_leaf *leaf, CUdeviceptr address,
                                  size_t size_bytes);

/* Taken from the driver. */
struct rs_detached_held {
    size_t bytes, peak_bytes;
};

/* What the kinds of leaf do.  Called under no lock of the leaf's; relaxed capture mode is theirs to
 * set. */
struct rs_detached_calls {
    /* Takes memory, usable on every stream at once, and charges it to the environment's account. */
    rs_detached_take *take;

    rs_detached_give *give; /* no work uses it any more */

    /* The same when the context that was the environment's is no more.  What fails here is tried
     * again (unfinished.h): when the next such leaf is made a context is current. */
    rs_detached_give *give_late;

    /* After all was given back that could be: ends what the leaf itself has.  False when it is to
     * be called again, as the driver refused.  May be NULL. */
    bool (*end)(struct rs_detached_leaf *leaf);

    size_t (*trim)(struct rs_mr *mr, const struct rs_trim *trim); /* as in struct rs_mr_ops; may be
                                                                     NULL */
    size_t (*excess_bytes)(struct rs_mr *mr);                     /* these two too */
    void (*synchronise)(struct rs_mr *mr, enum rs_synchronise when);
    size_t (*idle_bytes)(struct rs_mr *mr);
    CUresult (*access_changed)(struct rs_mr *mr, CUdevice peer, bool allowed); /* may be NULL */
    /* For the report: makes no driver call.  NULL: what is live, and its peak. */
    struct rs_detached_held (*held)(struct rs_detached_leaf *leaf);
};

/* First member of such a leaf, which is published memory and freed here. */
struct rs_detached_leaf {
    struct rs_mr base;
    const struct rs_environment *environment;
    const struct rs_detached_calls *calls;
    _Atomic uint64_t allocations, deallocations, failures;

    struct rs_mutex lock; /* protects what follows */
    bool has_ended;
    unsigned inside; /* calls under way, which the end waits for: the last one out ends it all */
    struct rs_record_slab records;
    struct rs_detached_record *first;
    _Atomic size_t live_bytes, peak_live_bytes; /* base/counter.h */

    /* Of who ends it alone. */
    struct rs_unfinished unfinished;
    bool is_closed; /* `end` has succeeded */
};

/* The leaf must be all zero.  First gives back what earlier leaves could not. */
void rs_detached_leaf_init(struct rs_detached_leaf *leaf, const struct rs_mr_descriptor *descriptor,
                           const struct rs_environment *environment,
                           const struct rs_detached_calls *calls);

/* Around driver calls about what the leaf has.  False when the context has ended: before, so that
 * nothing of it is there any more; or meanwhile. */
bool rs_detached_leaf_enter(struct rs_detached_leaf *leaf);
bool rs_detached_leaf_leave(struct rs_detached_leaf *leaf);

static inline struct rs_detached_leaf *rs_detached_leaf_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct rs_detached_leaf, base);
}
