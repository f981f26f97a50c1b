/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/leaf.h"

#include "driver/driver.h"
#include "resource/footprint.h"
#include "resource/report.h"
#include "resource/segment.h"

#include <errno.h>
#include <stdlib.h>

static struct rs_leaf *leaf_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct rs_leaf, base);
}

static CUresult give(struct rs_leaf *leaf, CUdeviceptr address)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result = leaf->give(address);

    rs_capture_restore(mode);
    return result;
}

/* Under a limit what is given back must be there for the next request. */
static bool gives_in_order(const struct rs_leaf *leaf)
{
    return leaf->give_in_order && rs_driver.cuMemFreeAsync &&
           !rs_account_has_limit(leaf->place->account);
}

static CUresult give_in_order(struct rs_leaf *leaf, CUdeviceptr address, CUstream stream)
{
    CUstreamCaptureMode mode;
    CUresult result;

    if (!stream || !gives_in_order(leaf))
        return give(leaf, address);
    mode = rs_capture_relax();
    result = leaf->give_in_order(address, stream);
    rs_capture_restore(mode);
    return result;
}

static __thread bool asks_ahead;

void rs_leaf_ask_ahead(bool ahead)
{
    asks_ahead = ahead;
}

/* Counted first, then taken, then entered; undone where it fails. */
static CUresult take_once(struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address)
{
    struct rs_account *account = leaf->place->account;
    enum rs_memory memory = leaf->memory;
    CUstreamCaptureMode mode;
    CUresult result;

    if (!rs_footprint_take(account, size_bytes, memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    mode = rs_capture_relax();
    result = leaf->take(leaf->place, size_bytes, address);
    rs_capture_restore(mode);
    if (result == CUDA_SUCCESS && !rs_segment_add(leaf->place, *address, size_bytes)) {
        (void)give(leaf, *address); /* out of host memory; nobody has seen the block */
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS && !rs_footprint_settle(account, *address, size_bytes, memory)) {
        rs_segment_remove(leaf->place, *address);
        (void)give(leaf, *address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        rs_footprint_untake(account, size_bytes, memory);
    return result;
}

/* Before it is out of memory, the device's other stacks and contexts give back what they merely
 * keep. */
static CUresult take(struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address)
{
    const struct rs_place *place = leaf->place;
    CUresult result = take_once(leaf, size_bytes, address);

    if (result != CUDA_ERROR_OUT_OF_MEMORY || asks_ahead || !place->reclaim ||
        leaf->memory == RS_MEMORY_HOST || place->reclaim(place, size_bytes) == 0)
        return result;
    return take_once(leaf, size_bytes, address);
}

static CUresult leaf_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                              struct rs_allocation *out)
{
    struct rs_leaf *leaf = leaf_of(mr);
    CUdeviceptr address = 0;
    CUresult result;

    (void)stream; /* these driver calls are synchronous: usable on every stream at once */
    result = take(leaf, size_bytes, &address);
    if (result != CUDA_SUCCESS) {
        atomic_fetch_add_explicit(&leaf->failures, 1, memory_order_relaxed);
        return result;
    }
    atomic_fetch_add_explicit(&leaf->allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&leaf->held_bytes, size_bytes, memory_order_relaxed);
    *out = (struct rs_allocation){address, size_bytes, NULL, NULL};
    return CUDA_SUCCESS;
}

static CUresult leaf_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                CUstream stream)
{
    struct rs_leaf *leaf = leaf_of(mr);
    CUresult result;

    /* Removed first: the moment the driver has it back it may give the address to another thread,
     * whose entry must not be the one removed. */
    rs_segment_remove(leaf->place, allocation->address);
    result = give_in_order(leaf, allocation->address, stream);
    if (result != CUDA_SUCCESS) {
        /* Still the driver's allocation (a sticky error, say).  Room for it was there before. */
        (void)rs_segment_add(leaf->place, allocation->address, allocation->size_bytes);
        return result;
    }
    rs_footprint_give(leaf->place->account, allocation->address, allocation->size_bytes,
                      leaf->memory);
    atomic_fetch_add_explicit(&leaf->deallocations, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&leaf->held_bytes, allocation->size_bytes, memory_order_relaxed);
    return CUDA_SUCCESS;
}

static void leaf_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    (void)memory_is_gone; /* the account of its context knows (rs_account_lose) */
    free(leaf_of(mr));
}

static bool leaf_deallocates_in_order(struct rs_mr *mr)
{
    return gives_in_order(leaf_of(mr));
}

static size_t leaf_trim(struct rs_mr *mr, size_t keep_bytes)
{
    (void)mr;
    (void)keep_bytes;
    return 0;
}

static void leaf_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_leaf *leaf = leaf_of(mr);
    const char *name = mr->descriptor->name;

    rs_report_add(report, name, "held", RS_COUNTER_LIVE, RS_UNIT_BYTES,
                  atomic_load_explicit(&leaf->held_bytes, memory_order_relaxed));
    rs_report_add(report, name, "driver_allocations", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                  atomic_load_explicit(&leaf->allocations, memory_order_relaxed));
    rs_report_add(report, name, "driver_frees", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                  atomic_load_explicit(&leaf->deallocations, memory_order_relaxed));
    rs_report_add(report, name, "driver_refusals", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                  atomic_load_explicit(&leaf->failures, memory_order_relaxed));
}

static const struct rs_mr_ops leaf_ops = {
    .allocate = leaf_allocate,
    .deallocate = leaf_deallocate,
    .destroy = leaf_destroy,
    .deallocates_in_order = leaf_deallocates_in_order,
    .trim = leaf_trim,
    .report = leaf_report,
};

int rs_leaf_create(const struct rs_mr_descriptor *descriptor, const struct rs_place *place,
                   CUresult (*take_memory)(const struct rs_place *, size_t, CUdeviceptr *),
                   CUresult (*give_memory)(CUdeviceptr), struct rs_mr **out)
{
    struct rs_leaf *leaf = calloc(1, sizeof(*leaf));

    if (!leaf)
        return -ENOMEM;
    rs_mr_init(&leaf->base, &leaf_ops, descriptor, NULL);
    leaf->place = place;
    leaf->memory = descriptor->memory;
    leaf->take = take_memory;
    leaf->give = give_memory;
    *out = &leaf->base;
    return 0;
}
