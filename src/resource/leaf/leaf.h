/* SPDX-License-Identifier: Apache-2.0 */
/* What `cuda`, `managed` and `pinned` do around their driver calls: they charge the context's
 * account, which keeps to the limit, set relaxed capture mode, enter the memory as a segment, and
 * wait as long as the program's request allows.
 *
 * Memory that no work uses any more (environment->frees_are_ready) goes back in the order of the
 * context's own stream, where the driver can do that: such a free does not wait for the GPU.  The
 * driver counts the memory as taken until a thread waits for that stream, so its bytes stay charged
 * until the leaf settles.  Other memory goes back with a driver call that waits, as cudaFree does;
 * inside a request it goes back only when its context is idle (base/request.h).  But where the
 * program frees in the order of a stream and there is no limit, the memory goes back in the order
 * of that stream, without a wait. */
#pragma once

#include "resource/resource.h"

struct rs_leaf;

/* The two driver calls of a kind of leaf. */
struct rs_leaf_calls {
    CUresult (*take)(const struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address);
    CUresult (*give)(CUdeviceptr address);
    bool has_order; /* cuMemFreeAsync can free this memory too, and does not wait */
};

struct rs_leaf {
    struct rs_mr base;
    enum rs_memory memory; /* the kind of memory as which it is counted */
    int node;              /* `pinned`: the NUMA node on which the memory should lie */
    const struct rs_leaf_calls *calls;
    _Atomic uint64_t allocations, deallocations, failures;
    _Atomic size_t held_bytes, peak_held_bytes; /* including unsettled bytes */

    /* Protects the sums of the blocks that were given back in order and are not settled yet. */
    struct rs_spinlock lock;
    size_t unsettled_bytes, unsettled_charge_bytes;
};

extern const struct rs_mr_ops rs_leaf_ops;

/* The `init` of a leaf over a pair of driver calls, for memory that is counted as the kind
 * `memory`.  Returns 0. */
int rs_leaf_init(struct rs_mr *mr, const struct rs_leaf_calls *calls, enum rs_memory memory);
