/* SPDX-License-Identifier: Apache-2.0 */
/* The live blocks that a tracking resource records. */
#pragma once

#include "resource/resource.h"
#include "trace/call_site.h"

/* One live block. */
struct rs_tracked {
    CUdeviceptr address;
    size_t size_bytes; /* as requested */
    /* The call site of the allocation; NULL: not recorded (the option `stacks`), or not known. */
    const struct rs_call_site *site;
};

/* Calls `visit` for each live block of mr, a `tracking` resource.  `visit` is called under a lock
 * of the resource, so it must not allocate or free through the resource.  At exit, blocks whose
 * lock is not free in time are left out.  Thread safe. */
void rs_tracking_each(struct rs_mr *mr, void (*visit)(void *data, const struct rs_tracked *tracked),
                      void *data);
