/* SPDX-License-Identifier: Apache-2.0 */
/* What every leaf does around the driver's call: the device's account with its limit, relaxed
 * capture mode, the table of segments. */
#pragma once

#include "resource/resource.h"

struct rs_leaf {
    struct rs_mr base;
    const struct rs_place *place;
    enum rs_memory memory; /* that it is counted as; the descriptor's unless changed at creation */
    CUresult (*take)(const struct rs_place *place, size_t size_bytes, CUdeviceptr *address);
    CUresult (*give)(CUdeviceptr address);
    CUresult (*give_in_order)(CUdeviceptr address, CUstream stream); /* does not wait; or NULL */
    _Atomic uint64_t allocations, deallocations, failures;
    _Atomic size_t held_bytes;
};

/* A leaf over a pair of driver calls; its descriptor tells what memory that is.  0 or -ENOMEM. */
int rs_leaf_create(const struct rs_mr_descriptor *descriptor, const struct rs_place *place,
                   CUresult (*take)(const struct rs_place *, size_t, CUdeviceptr *),
                   CUresult (*give)(CUdeviceptr), struct rs_mr **out);

/* Between these two the calling thread asks for more than anybody needs now: nothing is reclaimed
 * for it, as it will ask for less. */
void rs_leaf_ask_ahead(bool ahead);
