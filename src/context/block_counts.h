/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the live blocks and bytes of the program at each allocation and free.
 *
 * Each thread counts in its own cache line, its share, which a later thread may take over
 * (base/thread.h). A peak is exact as long as no more than two shares have ever been used for that
 * kind of memory on that device. With more shares, each thread may have up to RS_PEAK_SLACK_BYTES
 * (4 MiB) and RS_PEAK_SLACK_BLOCKS (64) live that no peak includes yet. Exact peaks would need the
 * sum over all threads at each allocation, which would cost more than the allocation. */
#pragma once

#include "base/check.h"
#include "base/lock.h"
#include "base/thread.h"
#include "config/config.h"
#include "resource/report.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_PEAK_SLACK_BYTES = 4 << 20, RS_PEAK_SLACK_BLOCKS = 64 };

/* Counts of one kind of memory on one device.  All but the peaks are exact unless a thread
 * allocates or frees at that moment. */
struct rs_block_counts {
    size_t live_bytes, peak_live_bytes; /* as requested */
    size_t live_blocks, peak_live_blocks;
    size_t recent_peak_live_bytes; /* since the last restart */
    /* The numbers of allocations and frees since the process began; a block whose free fails counts
     * as freed and allocated again. */
    uint64_t entered, left;
    uint64_t entered_bytes, left_bytes;
};

struct rs_block_peaks {
    size_t live_bytes, live_blocks;
};

/* Returns the counts of one kind of memory on one device. This and all functions below are thread
 * safe; kind and device must be in range. */
struct rs_block_counts rs_block_counts(enum rs_kind kind, int device);

/* Returns the peaks since the last restart, this moment included, and restarts them from the live
 * bytes and blocks. peak_live_bytes and peak_live_blocks of rs_block_counts restart only with
 * `forgets`. */
struct rs_block_peaks rs_block_counts_restart(enum rs_kind kind, int device, bool forgets);

/* Counts of one share: what all threads that have had the share's index (base/thread.h) have
 * counted. Live bytes are negative when these threads have freed more than they allocated. */
struct rs_block_thread_counts {
    int64_t live_bytes, peak_live_bytes; /* the peak since the last restart */
    uint64_t entered_bytes, entered;
};

/* Returns the counts of a share. The peak is exact if rs_block_counts_restart was called whenever
 * the share's peak was restarted. */
struct rs_block_thread_counts rs_block_counts_thread(enum rs_kind kind, int device, unsigned index);

/* Returns the counts as rs_block_counts_thread does, and restarts the peak of the share from its
 * live bytes. */
struct rs_block_thread_counts rs_block_counts_restart_thread(enum rs_kind kind, int device,
                                                             unsigned index);

/* Returns the devices that have a counter of that kind: bit 1 << device. */
uint64_t rs_block_counts_devices(enum rs_kind kind);

/* One thread's share of the counts. Only the thread that has the share's index counts in it. In
 * share 0, threads without an index of their own count with fetch-add. Any thread may restart a
 * share's peak. */
struct rs_block_share {
    _Alignas(RS_CACHE_LINE) _Atomic uint64_t entered_bytes;
    _Atomic uint64_t left_bytes;
    _Atomic uint64_t entered, left;
    /* The lowest numbers of live bytes and blocks of this share since its thread last summed all
     * shares to look for a peak. */
    _Atomic int64_t looked_bytes, looked_blocks;
    /* The largest difference of entered_bytes and left_bytes since rs_block_counts_restart_thread.
     * Only allocations on the slow path raise it. The fast path is taken only while no other share
     * is in use and no peak of the process rises, so rs_block_counts_thread adds what is missing
     * from the process's peak. */
    _Atomic int64_t peak_live_bytes;
};

_Static_assert(sizeof(struct rs_block_share) == RS_CACHE_LINE, "a thread writes one line");

struct rs_block_counter {
    _Alignas(RS_CACHE_LINE) _Atomic uint64_t used;    /* bit i: share i is in use; rarely written */
    _Atomic size_t peak_live_bytes, peak_live_blocks; /* since the last restart */
    _Atomic size_t past_peak_live_bytes, past_peak_live_blocks; /* before the last restart */
    struct rs_block_share shares[RS_THREAD_INDEXES];
};

/* Returns the counter of one kind of memory on one device.  It is made at the first call and lives
 * as long as the process. */
struct rs_block_counter *rs_block_counter(enum rs_kind kind, int device);

/* Must be called before the first counter is made, and again in a forked child: counters lie in
 * published memory (shared/published.h), of which a child has no copy. */
void rs_block_counts_begin(void);

/* Name of the program's own counters in reports, beside the names of resources. */
#define RS_PROGRAM "program"

/* Adds the counts of one kind of memory on one device to the report, if their counter has been
 * made; nothing need have been allocated. */
void rs_block_counts_report(enum rs_kind kind, int device, struct rs_report *report);

/* Returns a count that grows by one for each block that the calling thread frees. For a thread that
 * shares index 0, frees of other threads count too. */
uint64_t rs_block_count_left_here(const struct rs_block_counter *counter);

/* Slow paths of the two functions below. Both are for a thread that shares index 0 or counts for
 * the first time. rs_block_count_entered_slowly is also for an allocation that raises a peak, and
 * for all allocations when other threads have counted too. */
void rs_block_count_entered_slowly(struct rs_block_counter *counter, size_t size_bytes);
void rs_block_count_left_slowly(struct rs_block_counter *counter, size_t size_bytes);

RS_HOT_INLINE uint64_t rs_block_count_get(const _Atomic uint64_t *count)
{
    return atomic_load_explicit(count, memory_order_acquire);
}

RS_HOT_INLINE void rs_block_count_entered(struct rs_block_counter *counter, size_t size_bytes)
{
    unsigned index = rs_thread_index_if_own();
    struct rs_block_share *share = &counter->shares[index];
    uint64_t bytes = rs_block_count_get(&share->entered_bytes) + size_bytes;
    uint64_t blocks = rs_block_count_get(&share->entered) + 1;
    uint64_t others = rs_block_count_get(&counter->used) ^ (uint64_t)1 << index;
    /* Bit 63 is set if this allocation makes a new peak, since one of the two differences is
     * negative then; no sum comes near 2^63 otherwise. */
    uint64_t below_peaks = (atomic_load_explicit(&counter->peak_live_bytes, memory_order_relaxed) -
                            bytes + rs_block_count_get(&share->left_bytes)) |
                           (atomic_load_explicit(&counter->peak_live_blocks, memory_order_relaxed) -
                            blocks + rs_block_count_get(&share->left));

    if (RS_UNLIKELY(others | !index | below_peaks >> 63)) {
        rs_block_count_entered_slowly(counter, size_bytes);
        return;
    }
    atomic_store_explicit(&share->entered_bytes, bytes, memory_order_release);
    atomic_store_explicit(&share->entered, blocks, memory_order_release);
}

RS_HOT_INLINE void rs_block_count_left(struct rs_block_counter *counter, size_t size_bytes)
{
    unsigned index = rs_thread_index_if_own();
    struct rs_block_share *share = &counter->shares[index];
    uint64_t is_new = ~rs_block_count_get(&counter->used) & (uint64_t)1 << index;

    if (RS_UNLIKELY(is_new | !index)) {
        rs_block_count_left_slowly(counter, size_bytes);
        return;
    }
    atomic_store_explicit(&share->left_bytes, rs_block_count_get(&share->left_bytes) + size_bytes,
                          memory_order_release);
    atomic_store_explicit(&share->left, rs_block_count_get(&share->left) + 1, memory_order_release);
}
