/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/memory.h"

#include "driver/array.h"
#include "driver/config.h"
#include "driver/device.h"
#include "driver/entry_table.h"
#include "driver/lock.h"
#include "driver/managed.h"
#include "driver/pool.h"
#include "driver/race.h"
#include "hostcuda.h"

#include <search.h>
#include <stdlib.h>
#include <sys/mman.h>

static unsigned long long last_id;
static unsigned live_count;
static void *noted; /* a tree of allocations that lie in no region; none overlaps another */

/* Ranges that overlap compare equal: that makes the tree find a range by any address inside. */
static int compare(const void *a, const void *b)
{
    const struct hc_alloc *left = a, *right = b;
    if (left->base + left->size <= right->base)
        return -1;
    return right->base + right->size <= left->base;
}

static void own(struct hc_alloc *alloc, struct hc_ctx *ctx)
{
    alloc->id = ++last_id;
    live_count++;
    alloc->ctx = ctx;
    if (!ctx)
        return;
    alloc->next = ctx->allocs;
    alloc->link = &ctx->allocs;
    if (alloc->next)
        alloc->next->link = &alloc->next;
    ctx->allocs = alloc;
}

void hc_memory_disown(struct hc_alloc *alloc)
{
    if (!alloc->ctx)
        return;
    *alloc->link = alloc->next;
    if (alloc->next)
        alloc->next->link = alloc->link;
    alloc->ctx = NULL;
}

/* The driver's own caches make room; false if they hold nothing. */
static bool reclaim(const struct hc_region *region)
{
    for (int i = 0; i < hc_config.device_count; i++) {
        if (region == &hc_device_at(i)->memory)
            return hc_pool_trim_all(i) || hc_managed_evict(i);
    }
    return false;
}

CUresult hc_memory_take(struct hc_region *region, struct hc_ctx *ctx, enum hc_kind kind,
                        size_t bytes, unsigned flags, struct hc_alloc **out)
{
    struct hc_alloc *alloc = calloc(1, sizeof(*alloc));
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    alloc->size = bytes;
    alloc->kind = kind;
    alloc->flags = flags;
    alloc->is_rdma_capable = kind == HC_DEVICE;
    alloc->syncs_memops = kind == HC_MANAGED; /* from the start, as on an H200 */
    while (!hc_region_take(region, alloc)) {
        if (reclaim(region))
            continue;
        free(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    own(alloc, ctx);
    alloc->device = ctx ? ctx->device : 0;
    if (kind != HC_ASYNC)
        hc_race_driver_allocates(alloc->base, alloc->size);
    *out = alloc;
    return CUDA_SUCCESS;
}

bool hc_memory_note(struct hc_alloc *alloc, struct hc_ctx *ctx)
{
    struct hc_alloc **found = tsearch(alloc, &noted, compare);
    if (!found || *found != alloc)
        return false;
    own(alloc, ctx);
    return true;
}

void hc_memory_release(struct hc_alloc *alloc, enum hc_race_end why)
{
    hc_memory_disown(alloc);
    struct hc_region *region = hc_memory_region_of(alloc->base);
    if (alloc->pool)
        hc_pool_give(alloc);
    if (alloc->array)
        hc_array_forget(alloc->array);
    if (alloc->kind == HC_MANAGED)
        hc_managed_forget(alloc->base, alloc->size);
    hc_race_driver_frees(alloc->base, alloc->size, why);
    if (region)
        hc_region_give(region, alloc);
    else
        tdelete(alloc, &noted, compare);
    if (alloc->kind == HC_IMPORTED)
        munmap((void *)(alloc->base / HC_BLOCK_BYTES * HC_BLOCK_BYTES), alloc->reserved_bytes);
    free(alloc);
    live_count--;
}

void hc_memory_free_all(struct hc_ctx *ctx)
{
    while (ctx->allocs)
        hc_memory_release(ctx->allocs, HC_RACE_CONTEXT_ENDS);
}

void hc_memory_linger(struct hc_stream *stream, const struct hc_alloc *alloc)
{
    /* Of small ones, which share a block, nothing is known. */
    if (alloc->device != stream->ctx->device || alloc->reserved_bytes % HC_BLOCK_BYTES != 0)
        return;
    stream->lingering_bytes += alloc->reserved_bytes;
    hc_device_at(alloc->device)->memory.used_bytes += alloc->reserved_bytes;
}

static void settle(int device, size_t *bytes)
{
    hc_device_at(device)->memory.used_bytes -= *bytes;
    *bytes = 0;
}

void hc_memory_settle_stream(struct hc_stream *stream)
{
    settle(stream->ctx->device, &stream->lingering_bytes);
}

static void settle_streams(struct hc_ctx *ctx)
{
    for (struct hc_stream *stream = ctx->streams; stream; stream = stream->next)
        hc_memory_settle_stream(stream);
}

void hc_memory_settle(struct hc_ctx *ctx)
{
    struct hc_ctx *owner = ctx->owner;
    settle(owner->device, &owner->lingering_bytes);
    settle_streams(owner);
    for (struct hc_ctx *green = owner->greens; green; green = green->next)
        settle_streams(green);
}

struct hc_region *hc_memory_region_of(uintptr_t address)
{
    if (hc_region_holds(hc_managed_region(), address))
        return hc_managed_region();
    if (hc_region_holds(hc_pinned_region(), address))
        return hc_pinned_region();
    for (int i = 0; i < hc_config.device_count; i++) {
        if (hc_region_holds(&hc_device_at(i)->memory, address))
            return &hc_device_at(i)->memory;
    }
    return NULL;
}

struct hc_alloc *hc_memory_find(uintptr_t address)
{
    const struct hc_region *region = hc_memory_region_of(address);
    if (region)
        return hc_region_find(region, address);
    struct hc_alloc key = {.base = address, .size = 1};
    struct hc_alloc **found = tfind(&key, &noted, compare);
    return found ? *found : NULL;
}

struct hc_alloc *hc_memory_find_base(uintptr_t address)
{
    struct hc_alloc *alloc = hc_memory_find(address);
    return alloc && alloc->base == address ? alloc : NULL;
}

bool hc_memory_is_known(uintptr_t address)
{
    return hc_memory_region_of(address) || hc_memory_find(address);
}

HC_API unsigned hostcuda_live_allocations(void)
{
    HC_LOCKED();
    return live_count;
}
