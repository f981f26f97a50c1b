/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: lets a freed block become reusable only when all work that its context had been given
 * before the free is done, which is what cudaFree guarantees.
 *
 * It waits the way the driver itself does: it frees a sentinel, a 512-byte block, with the real
 * cuMemFree in relaxed capture mode.  That call returns when every stream of the block's context is
 * idle, destroyed, per-thread and non-blocking ones included, and it harms no capture
 * (cuda-measured.md, "One fence").  cuCtxSynchronize would invalidate captures of any thread. */
#include "base/clock.h"
#include "driver/fence.h"
#include "resource/report.h"
#include "resource/resource.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct reuse {
    struct rs_mr base;
    const struct rs_place *place;
    _Atomic uint64_t wait_count, wait_ns;
};

static struct reuse *reuse_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct reuse, base);
}

/* Not under any lock: it may take as long as the program's kernels do. */
static CUresult wait_for_context(struct reuse *reuse)
{
    uint64_t begin_ns = rs_clock_ns();
    CUresult result = rs_sentinel_wait(reuse->place->sentinel, reuse->place->context);

    atomic_fetch_add_explicit(&reuse->wait_count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&reuse->wait_ns, rs_clock_ns() - begin_ns, memory_order_relaxed);
    return result;
}

static CUresult reuse_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                 CUstream stream)
{
    CUresult result = wait_for_context(reuse_of(mr));

    return result == CUDA_SUCCESS ? rs_mr_deallocate(mr->upstream[0], allocation, stream) : result;
}

static void reuse_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    (void)memory_is_gone;
    free(reuse_of(mr));
}

static void reuse_report(struct rs_mr *mr, struct rs_report *report)
{
    struct reuse *reuse = reuse_of(mr);

    rs_report_add(report, "reuse", "waits", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                  atomic_load_explicit(&reuse->wait_count, memory_order_relaxed));
    rs_report_add(report, "reuse", "waited", RS_COUNTER_TOTAL, RS_UNIT_NANOSECONDS,
                  atomic_load_explicit(&reuse->wait_ns, memory_order_relaxed));
}

static const struct rs_mr_ops reuse_ops = {
    .allocate = rs_mr_forward_allocate,
    .deallocate = reuse_deallocate,
    .destroy = reuse_destroy,
    .report = reuse_report,
};

static int reuse_create(const struct rs_place *place, const void *config,
                        struct rs_mr *const *upstream, struct rs_mr **out)
{
    struct reuse *reuse = calloc(1, sizeof(*reuse));

    (void)config;
    if (!reuse)
        return -ENOMEM;
    rs_mr_init(&reuse->base, &reuse_ops, &rs_mr_descriptor_reuse, upstream);
    reuse->place = place;
    *out = &reuse->base;
    return 0;
}

static const struct rs_option reuse_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_reuse = {
    .name = "reuse",
    .summary = "a freed block becomes reusable when all earlier work of its context is done "
               "(inserted where it is needed)",
    .upstream_count = 1,
    .frees = RS_FREE_WAITS,
    .options = reuse_options,
    .create = reuse_create,
};
