/* SPDX-License-Identifier: Apache-2.0 */
/* Tells what `poison` resources know about a block that the program frees wrongly. */
#pragma once

#include "resource/resource.h"
#include "trace/call_site.h"

#include <stdatomic.h>
#include <stdbool.h>

/* A block that `poison` has handed out, or keeps after its free. */
struct rs_poisoned {
    int device;
    CUdeviceptr address;
    size_t size_bytes;               /* as requested */
    const struct rs_call_site *site; /* that allocated the block; NULL: not known */
    bool aborts;                     /* the option on_error=abort: a mistake aborts the process */
};

/* The number of `poison` resources in the process. */
extern _Atomic unsigned rs_poison_count;

/* Finds the live or kept block that begins at the address.  Looks in each `poison` from mr down.
 * Returns false when there is none. */
bool rs_poison_find(struct rs_mr *mr, CUdeviceptr address, struct rs_poisoned *found);

/* Logs a wrong free of this block, and aborts the process if block->aborts.  how: what the line
 * says after "block ADDRESS of SIZE bytes".  The caller holds no lock. */
void rs_poison_say_freed(const struct rs_poisoned *block, const char *how);
