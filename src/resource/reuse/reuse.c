/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: hands a freed block out again only when all work that its context was given before the
 * free is done. cudaFree guarantees the same by waiting for the whole device.
 *
 * Freed blocks gather in open lists, one per group of threads (a shard).  When it is time (bytes,
 * count, an allocation that finds no ready block) the lists are sealed into an epoch behind one
 * fence (epochs.c).  When the fence is done, the epoch's blocks are ready: they stay with their
 * shard for the next request of their size (ready.c), or go upstream.  Unless the option says
 * free=wait, no free waits where fences can be had, and an allocation waits only when the stack
 * would otherwise grow past the most that the program ever used at once (allocation.c).
 *
 * A driver before 12.5 has no fences.  There a free waits for the context, as cudaFree does, and
 * its block goes upstream at once.  Only host memory and blocks freed in the order of a stream
 * gather with such a driver too, and a free now and then waits for all of them (deallocation.c).
 *
 * A free of host memory seals at once from 64 KiB on.  An allocation of such a size queries the
 * fence, so that a loop over one buffer stays in the processor's caches.  If the size fits into no
 * cache, the allocation queries only when no other block is free.  A shard also keeps the last few
 * large blocks of host memory, all of one size, which saves the way upstream and back (some 800
 * instructions).
 *
 * A block that was freed in the order of a stream may be handed out at once to an allocation in the
 * order of the same stream.  Until then it waits for a fence as other blocks do, but in a slot and
 * not in a list.  It leaves the quarantine in whichever of the two ways comes first. */
#include "resource/reuse/reuse.h"

#include "base/lock.h"
#include "base/request.h"
#include "driver/fence.h"
#include "resource/report.h"

static const char *const mode_words[] = {"deferred", "wait", NULL};

struct reuse_config {
    int free; /* the index of the word in mode_words: 1 is wait */
};

enum {
    EAGER_BYTES = 64 << 10, /* the size from which a free of host memory seals at once */
    TRIM_LOOKS = 24, /* queries without progress after which a trim stops waiting for fences, ... */
    TRIM_NS = 20 * 1000 * 1000, /* ... and the longest time that it waits */
};

/* Retires the epochs whose fences are done.  With may_wait it then queries the other fences
 * repeatedly, since a fence of an idle context is done only some microseconds after its record.  It
 * usually ends after TRIM_LOOKS queries without progress; TRIM_NS is longer than these take, as
 * other threads may keep the processors busy. */
static void retire_at_once(struct rs_reuse *reuse, bool may_wait)
{
    uint64_t begin_ns = rs_clock_ns();
    unsigned looks = 0;

    (void)rs_reuse_retire(reuse);
    while (may_wait && rs_reuse_has_sealed(reuse, false) && looks < TRIM_LOOKS &&
           rs_clock_ns() - begin_ns < TRIM_NS) {
        rs_reuse_nap();
        looks = rs_reuse_retire(reuse) ? 0 : looks + 1;
    }
}

static bool reuse_check(struct rs_mr *mr)
{
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);
    struct rs_reuse_quantity sum;
    bool good = true;
    RS_MUTEX_GUARD(&reuse->lock);

    sum = rs_reuse_in_epochs(reuse);
    for (unsigned i = 0; i < rs_reuse_shards_used(reuse); i++) {
        rs_spinlock_lock(&reuse->shards[i].lock);
        sum.bytes += reuse->shards[i].open.bytes + reuse->shards[i].open_rest.bytes;
        sum.blocks += reuse->shards[i].open.count + reuse->shards[i].open_rest.count;
        good = rs_kept_check(&reuse->shards[i].kept) && good;
        rs_spinlock_unlock(&reuse->shards[i].lock);
    }
    RS_MUTEX_GUARD(&reuse->ordered.lock);
    /* Blocks on their way upstream are in no list but still count as quarantined, so the sum over
     * the lists may be smaller.  The lock of the ordered blocks is held so that no allocation takes
     * one of them between the two sums. */
    return rs_ordered_check(&reuse->ordered, &sum) && good &&
           sum.bytes <= rs_reuse_quarantined(reuse).bytes &&
           sum.blocks <= rs_reuse_quarantined(reuse).blocks;
}

static size_t reuse_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);

    (void)rs_reuse_begin_slow_path(reuse, RS_KEPT_SMALL);
    if (!rs_reuse_retire(reuse) || rs_reuse_open_count(reuse))
        (void)rs_reuse_seal(reuse);
    retire_at_once(reuse, !trim->is_reclaim);
    /* Without fences the open blocks are waited for, but not inside a request. */
    if (!rs_fence_supported() && rs_reuse_open_count(reuse) && !rs_request_is_under_way())
        (void)rs_reuse_wait_for_all(reuse);
    rs_reuse_end_slow_path(reuse);
    RS_ASSERT_SLOW(reuse_check(mr));
    return rs_mr_trim_with(mr->upstream[0], trim);
}

/* True when the bytes that upstream holds beyond its release threshold, and the freed bytes here,
 * are each at least RS_DRIVER_GRANULARITY, the driver's unit.  With less of either, blocks that go
 * upstream would return nothing to the driver. */
static bool holds_excess(struct rs_reuse *reuse)
{
    return rs_mr_excess_bytes(reuse->base.upstream[0]) >= RS_DRIVER_GRANULARITY &&
           rs_reuse_quarantined(reuse).bytes + rs_reuse_kept(reuse).bytes >= RS_DRIVER_GRANULARITY;
}

/* Gives ready blocks upstream.  all: the program has waited for all work of the context, so that
 * the fence of each sealed epoch is done now or in some microseconds. */
static void give_excess(struct rs_reuse *reuse, bool all)
{
    (void)rs_reuse_begin_slow_path(reuse, RS_KEPT_SMALL);
    if (all)
        retire_at_once(reuse, !rs_request_is_under_way());
    else
        (void)rs_reuse_retire(reuse);
    rs_reuse_end_slow_path(reuse);
}

/* Makes frees assume that a stream captures, until a seal finds that none does. */
static void expect_captures(struct rs_reuse *reuse)
{
    int granted = RS_FENCE_GRANTED;

    (void)atomic_compare_exchange_strong(&reuse->refusal, &granted, RS_FENCE_CAPTURES);
}

/* Before the program waits, seals, so that the epoch is done after the wait unless other streams
 * are busy.  After the wait, gives ready blocks upstream.  Both are done only if memory would go
 * back to the driver then.  Seals also before a capture, since no fence can be recorded until its
 * end. */
static void reuse_synchronise(struct rs_mr *mr, enum rs_synchronise when)
{
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);

    if (when == RS_SYNCHRONISE_CAPTURE || (reuse->base.has_threshold && holds_excess(reuse))) {
        if (when >= RS_SYNCHRONISE_END_SOME)
            give_excess(reuse, when == RS_SYNCHRONISE_END_ALL);
        else if (rs_reuse_open_count(reuse))
            (void)rs_reuse_seal(reuse);
        if (when == RS_SYNCHRONISE_CAPTURE)
            expect_captures(reuse);
    }
    rs_mr_synchronise(mr->upstream[0], when);
}

/* Reads the places in the order in which freed blocks pass through them, so that a block on its way
 * counts at least once.  It may count twice for a moment. */
static size_t reuse_idle_bytes(struct rs_mr *mr)
{
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);
    size_t bytes = rs_reuse_quarantined(reuse).bytes;

    bytes += rs_reuse_kept(reuse).bytes;
    return bytes + atomic_load(&reuse->giving_bytes);
}

static size_t reuse_free_blocks(struct rs_mr *mr)
{
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);
    size_t blocks = rs_reuse_quarantined(reuse).blocks; /* read first, as above */

    return blocks + rs_reuse_kept(reuse).blocks;
}

static void reuse_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);
    const struct rs_reuse_shard *first = &reuse->shards[0];
    /* These sums are those of rs_reuse_quarantined. */
    struct rs_term bytes[] = {
        {RS_REPORT_PLACE(first->entered_bytes), RS_REUSE_SHARDS, sizeof(*first), 1},
        RS_TERM(reuse->ordered_bytes, 1),
        RS_TERM(reuse->left_bytes, -1),
    };
    struct rs_term blocks[] = {
        {RS_REPORT_PLACE(first->entered_count), RS_REUSE_SHARDS, sizeof(*first), 1},
        RS_TERM(reuse->ordered_count, 1),
        RS_TERM(reuse->left_count, -1),
    };

#define ADD(name, kind, unit, field)                                                               \
    rs_report_add_field(report, "reuse", name, RS_COUNTER_##kind, RS_UNIT_##unit, reuse->field)
    rs_report_add_sum(report, "reuse", "quarantined", RS_COUNTER_LIVE, RS_UNIT_BYTES, bytes, 3);
    rs_report_add_sum(report, "reuse", "quarantined_blocks", RS_COUNTER_LIVE, RS_UNIT_COUNT, blocks,
                      3);
    rs_report_add(report, "reuse", "kept", RS_COUNTER_LIVE, RS_UNIT_BYTES,
                  rs_reuse_kept(reuse).bytes);
    ADD("epochs_sealed", TOTAL, COUNT, sealed_epochs);
    ADD("epochs_retired", TOTAL, COUNT, retired_epochs);
    ADD("waits", TOTAL, COUNT, waits);
    ADD("waits_in_vain", TOTAL, COUNT, timeouts);
    ADD("full_waits", TOTAL, COUNT, full_waits);
    ADD("waited", TOTAL, NANOSECONDS, wait_ns);
    if (atomic_load(&reuse->ordered.is_used))
        ADD("stream_reuses", TOTAL, COUNT, ordered.reuses);
#undef ADD
}

static void reuse_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_reuse_batch open = rs_reuse_no_batch;
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);

    reuse->memory_is_gone = memory_is_gone;
    (void)rs_reuse_begin_slow_path(reuse, RS_KEPT_SMALL);
    if (memory_is_gone) {
        rs_reuse_take_open(reuse, &open);
        rs_reuse_give_ready(reuse, &open);
    } else {
        (void)rs_reuse_wait_for_all(reuse);
    }
    rs_reuse_destroy_epochs(reuse);
    rs_mutex_destroy(&reuse->ordered.lock);
    rs_mutex_destroy(&reuse->lock);
}

/* ---- creation ---- */

static const struct rs_mr_ops reuse_ops = {
    .allocate = rs_reuse_allocate,
    .deallocate = rs_reuse_deallocate,
    .end = reuse_end,
    .trim = reuse_trim,
    .synchronise = reuse_synchronise,
    .idle_bytes = reuse_idle_bytes,
    .free_blocks = reuse_free_blocks,
    .report = reuse_report,
    .check = reuse_check,
};

/* True when no block may be kept here, but each ready block must go upstream.  One case is a second
 * upstream (slower memory) that stands in for a first: its block must not be handed out again while
 * the first has room.  The other is `poison` beneath, which checks each use of a block. */
static bool needs_each_block(const struct rs_mr *mr)
{
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        if (needs_each_block(mr->upstream[i]))
            return true;
    return mr->descriptor->upstream_count > 1 || mr->descriptor == &rs_mr_descriptor_poison;
}

static int reuse_init(struct rs_mr *mr, const void *config)
{
    struct rs_reuse *reuse = RS_MR_AS(rs_reuse, mr);
    bool has_fences = rs_fence_supported(), is_host = mr->memories == 1u << RS_MEMORY_HOST;

    reuse->is_unordered = ((const struct reuse_config *)config)->free;
    reuse->frees_wait = reuse->is_unordered || !(has_fences || is_host);
    reuse->keeps_blocks = !reuse->frees_wait && !needs_each_block(mr->upstream[0]);
    reuse->is_eager = is_host;
    /* note_own_bytes replaces this value when the first epoch is ready. */
    reuse->own_bytes = reuse->keeps_blocks ? RS_KEPT_SMALL_BYTES : 0;
    atomic_init(&reuse->refusal, has_fences ? RS_FENCE_GRANTED : RS_FENCE_REFUSED);
    atomic_init(&reuse->eager_bytes, reuse->is_eager ? EAGER_BYTES : SIZE_MAX);
    reuse->initial_bytes = rs_reuse_held_bytes(reuse);
    rs_mutex_init(&reuse->lock, RS_RANK_REUSE);
    for (unsigned i = 0; i < RS_REUSE_SHARDS; i++) {
        rs_spinlock_init(&reuse->shards[i].lock, RS_RANK_REUSE_LISTS);
        reuse->shards[i].index = (unsigned char)i;
    }
    rs_spinlock_init(&reuse->refused_lock, RS_RANK_REUSE_LISTS);
    rs_mutex_init(&reuse->ordered.lock, RS_RANK_REUSE_LISTS);
    return 0;
}

static const struct rs_option reuse_options[] = {
    RS_OPTION_WORD_ROW(
        struct reuse_config, free, mode_words, "deferred",
        "deferred (the default): a free does not wait, and its block is reused only when all GPU "
        "work that was submitted to the context before the free is done; wait: every free "
        "waits for that work, as cudaFree does without rmmshim. Before driver 555 a deferred "
        "free waits, too, except for host memory"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_reuse = {
    .name = "reuse",
    .summary = "lets a freed block be reused only when all earlier GPU work of its CUDA context is "
               "done; rmmshim adds this resource where an expression needs it",
    .upstream_count = 1,
    .frees = RS_FREE_WAITS,
    .config_bytes = sizeof(struct reuse_config),
    .options = reuse_options,
};

RS_MR_CLASS(reuse, struct rs_reuse, reuse_ops, reuse_init);
