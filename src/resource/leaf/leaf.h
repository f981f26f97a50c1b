/* SPDX-License-Identifier: Apache-2.0 */
/* What every leaf does around the driver's call: the device's account with its limit, relaxed
 * capture mode, the table of segments, and what a request of the program's may wait for.
 *
 * Memory that no work uses any more (place->frees_are_ready) goes back in the order of the
 * context's own stream, where the driver can do that: such a free does not wait for the GPU.  The
 * driver keeps the memory taken until somebody waits for that stream, so until the leaf has settled
 * with it the bytes stay charged.  Other memory waits in the driver, as cudaFree does; inside a
 * request it is only given back when its context is idle (base/request.h). */
#pragma once

#include "base/lock.h"
#include "resource/resource.h"

struct rs_leaf {
    struct rs_mr base;
    const struct rs_environment *environment;
    enum rs_memory memory; /* that it is counted as; the descriptor's unless changed at creation */
    CUresult (*take)(const struct rs_environment *environment, size_t size_bytes,
                     CUdeviceptr *address);
    CUresult (*give)(CUdeviceptr address);
    CUresult (*give_in_order)(CUdeviceptr address, CUstream stream); /* does not wait; or NULL */
    _Atomic uint64_t allocations, deallocations, failures;
    _Atomic size_t held_bytes, peak_held_bytes; /* not settled included */

    struct rs_spinlock lock; /* protects what follows: given back in order, and not settled yet */
    size_t unsettled_bytes, unsettled_charge_bytes;
    uint64_t unsettled_count;
};

/* A leaf over a pair of driver calls; its descriptor tells what memory that is.  0 or -ENOMEM. */
int rs_leaf_create(const struct rs_mr_descriptor *descriptor,
                   const struct rs_environment *environment,
                   CUresult (*take)(const struct rs_environment *, size_t, CUdeviceptr *),
                   CUresult (*give)(CUdeviceptr), struct rs_mr **out);
