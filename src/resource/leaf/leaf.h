/* SPDX-License-Identifier: Apache-2.0 */
/* What `cuda`, `managed` and `pinned` do around their driver calls: they charge the context's
 * account, which keeps to the limit, set relaxed capture mode, enter the memory as a segment, and
 * wait as long as the program's request allows.
 *
 * Memory that no work uses any more (environment->frees_are_ready) goes back with cuMemFreeAsync on
 * the library's own stream of the context, if the driver has it: such a free does not wait for the
 * GPU.  The driver counts the memory as taken until a thread synchronises with that stream.  The
 * bytes are unsettled, and stay charged, until the leaf has done so.
 *
 * Other memory goes back with a driver call that waits, as cudaFree does; inside a request it goes
 * back only when its context is idle (base/request.h).  But if the program frees in the order of a
 * stream, and there is no limit, the memory goes back in that order, without a wait. */
#pragma once

#include "resource/resource.h"

struct rs_leaf;

/* The driver calls of a kind of leaf: one takes memory, the other gives it back. */
struct rs_leaf_calls {
    CUresult (*take)(const struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address);
    CUresult (*give)(CUdeviceptr address);
    bool has_order; /* cuMemFreeAsync can free this memory too, without a wait */
};

struct rs_leaf {
    struct rs_mr base;
    enum rs_memory memory; /* the kind of memory as which the account counts it */
    int node;              /* `pinned`: the NUMA node on which the memory should lie */
    const struct rs_leaf_calls *calls;
    _Atomic uint64_t allocations, deallocations, failures;
    _Atomic size_t held_bytes, peak_held_bytes; /* including unsettled bytes */

    /* Protects the sums over the unsettled blocks. */
    struct rs_spinlock lock;
    size_t unsettled_bytes, unsettled_charge_bytes;
};

extern const struct rs_mr_ops rs_leaf_ops;

/* Initialises a leaf over a pair of driver calls, whose memory is counted as the kind `memory`.
 * Returns 0. */
int rs_leaf_init(struct rs_mr *mr, const struct rs_leaf_calls *calls, enum rs_memory memory);
