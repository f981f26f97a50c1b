/* SPDX-License-Identifier: Apache-2.0 */
/* The work of every leaf around a driver call: the device's account with its limit, relaxed capture
 * mode, the table of segments, and the waits that a request of the program allows.
 *
 * Memory that no work uses any more (environment->frees_are_ready) goes back in the order of the
 * context's own stream, where the driver can do that: such a free does not wait for the GPU.  The
 * driver counts the memory as taken until a thread waits for that stream, so its bytes stay charged
 * until the leaf settles.  Other memory goes back with a driver call that waits, as cudaFree does;
 * inside a request it goes back only when its context is idle (base/request.h). */
#pragma once

#include "base/lock.h"
#include "resource/resource.h"

struct rs_leaf {
    struct rs_mr base;
    const struct rs_environment *environment;
    /* The kind it is counted as; the descriptor's unless changed at creation. */
    enum rs_memory memory;
    CUresult (*take)(const struct rs_environment *environment, size_t size_bytes,
                     CUdeviceptr *address);
    CUresult (*give)(CUdeviceptr address);
    /* A free that does not wait; NULL: the driver has none. */
    CUresult (*give_in_order)(CUdeviceptr address, CUstream stream);
    _Atomic uint64_t allocations, deallocations, failures;
    _Atomic size_t held_bytes, peak_held_bytes; /* including unsettled bytes */

    /* Protects the sums of blocks given back in order but not yet settled. */
    struct rs_spinlock lock;
    size_t unsettled_bytes, unsettled_charge_bytes;
    uint64_t unsettled_count;
};

/* Makes a leaf over a pair of driver calls, for the kind of memory in its descriptor.  Returns 0 or
 * -ENOMEM. */
int rs_leaf_create(const struct rs_mr_descriptor *descriptor,
                   const struct rs_environment *environment,
                   CUresult (*take)(const struct rs_environment *, size_t, CUdeviceptr *),
                   CUresult (*give)(CUdeviceptr), struct rs_mr **out);
