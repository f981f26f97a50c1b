/* SPDX-License-Identifier: Apache-2.0 */
/* What `poison` knows of blocks that the program has freed. */
#pragma once

#include "resource/resource.h"
#include "trace/call_site.h"

#include <stdatomic.h>
#include <stdbool.h>

/* A block that poison has handed out or keeps back. */
struct rs_poisoned {
    int device;
    CUdeviceptr address;
    size_t size_bytes; /* as requested */
    const struct rs_call_site *site;
    bool aborts; /* the process ends where a mistake is found */
};

/* Not 0: some stack of the process has the resource. */
extern _Atomic unsigned rs_poison_count;

/* Finds the block that begins at the address, in mr or below it. */
bool rs_poison_find(struct rs_mr *mr, CUdeviceptr address, struct rs_poisoned *found);

/* Says that the program has freed that block twice, and ends the process where it is to.  The
 * caller holds no lock. */
void rs_poison_say_freed_twice(const struct rs_poisoned *block);
