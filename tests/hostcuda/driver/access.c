/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/access.h"

#include "driver/config.h"
#include "driver/device.h"
#include "driver/pool.h"
#include "driver/vmm.h"

/* The device whose memory a region is; -1: of none. */
static int device_of(const struct hc_region *region)
{
    for (int i = 0; i < hc_config.device_count; i++) {
        if (region == &hc_device_at(i)->memory)
            return i;
    }
    return -1;
}

/* A kernel reaches another device's memory only where that was allowed: by the pool, or for all
 * other memory between the contexts. The copy engines always do. */
static bool may_reach(const struct hc_ctx *ctx, const struct hc_range *range, int device)
{
    if (device < 0 || device == ctx->device)
        return true;
    const struct hc_alloc *alloc = hc_memory_find(range->address);
    if (alloc && alloc->pool)
        return alloc->pool->access & 1u << ctx->device;
    return ctx->owner->peers & 1u << device;
}

static bool is_allowed(const struct hc_ctx *ctx, const struct hc_range *range, bool is_kernel)
{
    const struct hc_region *region = hc_memory_region_of(range->address);
    if (!region) {
        const struct hc_alloc *alloc = hc_memory_find(range->address);
        if (alloc && alloc->pool) /* an imported one */
            return alloc->pool->access & 1u << ctx->device;
        /* A kernel reaches no pageable memory of the program; a copy does. */
        if (is_kernel && !hc_memory_find(range->address))
            return hc_config.pageable;
        return hc_vmm_is_allowed(range->address, range->bytes, ctx->device, range->write);
    }
    if (!hc_region_is_mapped(region, range->address, range->bytes))
        return false;
    return !is_kernel || may_reach(ctx, range, device_of(region));
}

bool hc_access_is_allowed(const struct hc_ctx *ctx, const struct hc_work *work)
{
    for (unsigned i = 0; i < work->range_count; i++) {
        if (!is_allowed(ctx, &work->ranges[i], work->type == CU_GRAPH_NODE_TYPE_KERNEL))
            return false;
    }
    return true;
}
