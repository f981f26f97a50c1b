/* SPDX-License-Identifier: Apache-2.0 */
#include "context/block_counts.h"

#include "base/check.h"
#include "shared/published.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Each counter lies in published memory, so that other processes can read it; in `unpublished` when
 * there is none. */
static _Atomic(struct rs_block_counter *) counters[RS_KINDS][RS_DEVICES_MAX];
static struct rs_block_counter unpublished[RS_KINDS][RS_DEVICES_MAX];
static _Atomic uint64_t devices_of[RS_KINDS]; /* bit 1 << device: there is a counter */

_Static_assert(RS_DEVICES_MAX <= 64, "a word has a bit for each device");

void rs_block_counts_begin(void)
{
    for (int kind = 0; kind < RS_KINDS; kind++) {
        atomic_store(&devices_of[kind], 0);
        for (int device = 0; device < RS_DEVICES_MAX; device++)
            if (atomic_exchange(&counters[kind][device], NULL) == &unpublished[kind][device])
                memset(&unpublished[kind][device], 0, sizeof(unpublished[kind][device]));
    }
}

static struct rs_block_counter *make_counter(enum rs_kind kind, int device)
{
    struct rs_block_counter *published = NULL, *other = NULL;

    if (rs_published_head())
        published = RS_PUBLISHED_NEW(struct rs_block_counter);
    if (atomic_compare_exchange_strong(&counters[kind][device], &other,
                                       published ? published : &unpublished[kind][device])) {
        atomic_fetch_or(&devices_of[kind], (uint64_t)1 << device);
        return counters[kind][device];
    }
    rs_published_free(published);
    return other;
}

static uint64_t get_count(const _Atomic uint64_t *count)
{
    return rs_block_count_get(count);
}

static void add_to_share(_Atomic uint64_t *count, uint64_t by, bool is_shared)
{
    if (RS_UNLIKELY(is_shared))
        atomic_fetch_add_explicit(count, by, memory_order_release);
    else
        atomic_store_explicit(count, get_count(count) + by, memory_order_release);
}

static size_t above_zero(int64_t value)
{
    return value > 0 ? (size_t)value : 0;
}

static int64_t live_bytes_of(const struct rs_block_share *share)
{
    return (int64_t)(get_count(&share->entered_bytes) - get_count(&share->left_bytes));
}

static void raise_own_peak(struct rs_block_share *share, int64_t value)
{
    int64_t seen = atomic_load_explicit(&share->peak_live_bytes, memory_order_relaxed);

    while (value > seen &&
           !atomic_compare_exchange_weak_explicit(&share->peak_live_bytes, &seen, value,
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Sums the counts of all threads, without peaks.  All `entered` counts are read before the `left`
 * counts: changes in between can only make the live sums too small, so no peak is invented. */
static struct rs_block_counts sum(struct rs_block_counter *counter, uint64_t used)
{
    struct rs_block_counts counts = {0};

    for (uint64_t rest = used; rest; rest &= rest - 1) {
        const struct rs_block_share *share = &counter->shares[__builtin_ctzll(rest)];
        counts.entered_bytes += get_count(&share->entered_bytes);
        counts.entered += get_count(&share->entered);
    }
    for (uint64_t rest = used; rest; rest &= rest - 1) {
        const struct rs_block_share *share = &counter->shares[__builtin_ctzll(rest)];
        counts.left_bytes += get_count(&share->left_bytes);
        counts.left += get_count(&share->left);
    }
    counts.live_bytes = above_zero((int64_t)(counts.entered_bytes - counts.left_bytes));
    counts.live_blocks = above_zero((int64_t)(counts.entered - counts.left));
    return counts;
}

static struct rs_block_share *share_of_thread(struct rs_block_counter *counter, unsigned index)
{
    uint64_t bit = (uint64_t)1 << index;

    RS_ASSERT_SLOW(index < RS_THREAD_INDEXES);
    if (RS_UNLIKELY(!(get_count(&counter->used) & bit)))
        atomic_fetch_or(&counter->used, bit);
    return &counter->shares[index];
}

static int64_t lower(_Atomic int64_t *looked, int64_t value)
{
    int64_t seen = atomic_load_explicit(looked, memory_order_relaxed);

    if (seen <= value)
        return seen;
    atomic_store_explicit(looked, value, memory_order_relaxed);
    return value;
}

/* True when the share has RS_PEAK_SLACK_BYTES or RS_PEAK_SLACK_BLOCKS more live than at its lowest
 * point since the last look for a peak. The caller then looks for one. */
static bool has_grown(struct rs_block_share *share, size_t size_bytes)
{
    int64_t bytes = live_bytes_of(share);
    int64_t blocks = (int64_t)(get_count(&share->entered) - get_count(&share->left));

    if (bytes - lower(&share->looked_bytes, bytes - (int64_t)size_bytes) < RS_PEAK_SLACK_BYTES &&
        blocks - lower(&share->looked_blocks, blocks - 1) < RS_PEAK_SLACK_BLOCKS)
        return false;
    atomic_store_explicit(&share->looked_bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&share->looked_blocks, blocks, memory_order_relaxed);
    return true;
}

static bool has_more_than_two(uint64_t bits)
{
    bits &= bits - 1;
    return bits & (bits - 1);
}

struct rs_block_counter *rs_block_counter(enum rs_kind kind, int device)
{
    struct rs_block_counter *counter;

    RS_ASSERT(kind < RS_KINDS && device >= 0 && device < RS_DEVICES_MAX);
    counter = atomic_load(&counters[kind][device]);
    return counter ? counter : make_counter(kind, device);
}

/* Raises the peaks to the sum over all threads, and returns the counts. */
static struct rs_block_counts look_for_peaks(struct rs_block_counter *counter, uint64_t used)
{
    struct rs_block_counts counts = sum(counter, used);

    rs_counter_raise(&counter->peak_live_bytes, counts.live_bytes);
    rs_counter_raise(&counter->peak_live_blocks, counts.live_blocks);
    return counts;
}

void rs_block_count_entered_slowly(struct rs_block_counter *counter, size_t size_bytes)
{
    unsigned index = rs_thread_index();
    struct rs_block_share *share = share_of_thread(counter, index);
    uint64_t used = get_count(&counter->used);

    add_to_share(&share->entered_bytes, size_bytes, index == RS_THREAD_INDEX_SHARED);
    add_to_share(&share->entered, 1, index == RS_THREAD_INDEX_SHARED);
    raise_own_peak(share, live_bytes_of(share));
    if (RS_LIKELY(used == (uint64_t)1 << index)) {
        rs_counter_raise(&counter->peak_live_bytes, above_zero(live_bytes_of(share)));
        rs_counter_raise(
            &counter->peak_live_blocks,
            above_zero((int64_t)(get_count(&share->entered) - get_count(&share->left))));
    } else if (!has_more_than_two(used) || has_grown(share, size_bytes)) {
        (void)look_for_peaks(counter, used);
    }
}

void rs_block_count_left_slowly(struct rs_block_counter *counter, size_t size_bytes)
{
    unsigned index = rs_thread_index();
    struct rs_block_share *share = share_of_thread(counter, index);

    add_to_share(&share->left_bytes, size_bytes, index == RS_THREAD_INDEX_SHARED);
    add_to_share(&share->left, 1, index == RS_THREAD_INDEX_SHARED);
}

uint64_t rs_block_count_left_here(const struct rs_block_counter *counter)
{
    return get_count(&counter->shares[rs_thread_index()].left);
}

struct rs_block_counts rs_block_counts(enum rs_kind kind, int device)
{
    struct rs_block_counter *counter = rs_block_counter(kind, device);
    struct rs_block_counts counts = look_for_peaks(counter, get_count(&counter->used));

    /* The recent peaks are read before the past ones, since a restart raises a past peak before it
     * lowers the recent one: so no peak is missed. */
    counts.recent_peak_live_bytes = atomic_load(&counter->peak_live_bytes);
    counts.peak_live_blocks = atomic_load(&counter->peak_live_blocks);
    counts.peak_live_bytes =
        rs_max(counts.recent_peak_live_bytes, atomic_load(&counter->past_peak_live_bytes));
    counts.peak_live_blocks =
        rs_max(counts.peak_live_blocks, atomic_load(&counter->past_peak_live_blocks));
    return counts;
}

/* Sets *peak to 0, raises *past_peak to what the peak was, and returns what it was. The caller
 * raises the peak again, to what is live. */
static size_t restart(_Atomic size_t *peak, _Atomic size_t *past_peak)
{
    size_t was;

    rs_counter_raise(past_peak, atomic_load(peak));
    was = atomic_exchange(peak, 0);
    rs_counter_raise(past_peak, was);
    return was;
}

struct rs_block_peaks rs_block_counts_restart(enum rs_kind kind, int device, bool forgets)
{
    struct rs_block_counter *counter = rs_block_counter(kind, device);
    struct rs_block_peaks peaks;

    (void)look_for_peaks(counter, get_count(&counter->used));
    peaks.live_bytes = restart(&counter->peak_live_bytes, &counter->past_peak_live_bytes);
    peaks.live_blocks = restart(&counter->peak_live_blocks, &counter->past_peak_live_blocks);
    (void)look_for_peaks(counter, get_count(&counter->used));
    if (forgets) {
        atomic_store(&counter->past_peak_live_bytes, 0);
        atomic_store(&counter->past_peak_live_blocks, 0);
    }
    return peaks;
}

uint64_t rs_block_counts_devices(enum rs_kind kind)
{
    RS_ASSERT(kind < RS_KINDS);
    return get_count(&devices_of[kind]);
}

/* Returns the counts of the share. If no other share is in use, the fast path did not raise the
 * share's peak, and the process's peak is taken instead. */
struct rs_block_thread_counts rs_block_counts_thread(enum rs_kind kind, int device, unsigned index)
{
    struct rs_block_counter *counter = rs_block_counter(kind, device);
    struct rs_block_share *share = &counter->shares[index];
    struct rs_block_thread_counts counts = {
        .entered = get_count(&share->entered),
        .entered_bytes = get_count(&share->entered_bytes),
        .live_bytes = live_bytes_of(share),
    };

    RS_ASSERT(index < RS_THREAD_INDEXES);
    raise_own_peak(share, counts.live_bytes);
    if (get_count(&counter->used) == (uint64_t)1 << index)
        raise_own_peak(share, (int64_t)atomic_load(&counter->peak_live_bytes));
    counts.peak_live_bytes = atomic_load(&share->peak_live_bytes);
    return counts;
}

struct rs_block_thread_counts rs_block_counts_restart_thread(enum rs_kind kind, int device,
                                                             unsigned index)
{
    struct rs_block_thread_counts counts = rs_block_counts_thread(kind, device, index);
    struct rs_block_share *share = &rs_block_counter(kind, device)->shares[index];

    counts.peak_live_bytes = atomic_exchange(&share->peak_live_bytes, counts.live_bytes);
    raise_own_peak(share, live_bytes_of(share));
    return counts;
}

void rs_block_counts_report(enum rs_kind kind, int device, struct rs_report *report)
{
    struct rs_block_counter *counter = atomic_load(&counters[kind][device]);
    struct rs_block_share *shares;

    if (!counter)
        return;
    shares = counter->shares;
#define EACH(field, times)                                                                         \
    (struct rs_term){RS_REPORT_PLACE(shares[0].field), RS_THREAD_INDEXES, sizeof(shares[0]), times}
    rs_report_add_sum(report, RS_PROGRAM, "live", RS_COUNTER_LIVE, RS_UNIT_BYTES,
                      (struct rs_term[]){EACH(entered_bytes, 1), EACH(left_bytes, -1)}, 2);
    rs_report_add_sum(report, RS_PROGRAM, "live_allocations", RS_COUNTER_LIVE, RS_UNIT_COUNT,
                      (struct rs_term[]){EACH(entered, 1), EACH(left, -1)}, 2);
    rs_report_add_sum(report, RS_PROGRAM, "allocations", RS_COUNTER_TOTAL, RS_UNIT_COUNT,
                      (struct rs_term[]){EACH(entered, 1)}, 1);
    rs_report_add_sum(report, RS_PROGRAM, "total", RS_COUNTER_TOTAL, RS_UNIT_BYTES,
                      (struct rs_term[]){EACH(entered_bytes, 1)}, 1);
    rs_report_add_field(report, RS_PROGRAM, "peak", RS_COUNTER_PEAK, RS_UNIT_BYTES,
                        counter->peak_live_bytes);
    rs_report_add_field(report, RS_PROGRAM, "past_peak", RS_COUNTER_PEAK, RS_UNIT_BYTES,
                        counter->past_peak_live_bytes);
#undef EACH
}
