/* SPDX-License-Identifier: Apache-2.0 */
/* What a tracking resource remembers of live blocks. */
#pragma once

#include "resource/resource.h"
#include "trace/call_site.h"

struct rs_tracked {
    CUdeviceptr address;
    size_t size_bytes;               /* as requested */
    const struct rs_call_site *site; /* NULL: not asked for, or unknown */
};

/* Calls visit for each live block, with locks held that visit must not need. */
void rs_tracking_each(struct rs_mr *mr, void (*visit)(void *data, const struct rs_tracked *tracked),
                      void *data);
