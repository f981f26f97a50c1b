/* SPDX-License-Identifier: Apache-2.0 */
/* Peaks since a moment of one's own.  The block counts have one peak that can be restarted, and
 * levels of counters and phases each want the peak since they began: who restarts it tells the peak
 * before to all that watch. */
#pragma once

#include "base/lock.h"
#include "config/config.h"
#include "context/block_counts.h"

/* Embedded in who watches; the links are private. */
struct rs_peak_watch {
    /* Called under rs_peak_lock with the peaks since the last restart. */
    void (*raise)(struct rs_peak_watch *watch, enum rs_kind kind, int device,
                  struct rs_block_peaks peaks);
    struct rs_peak_watch *next, *previous;
};

/* Protects all watches, and what they note.  Its holder makes no counter (rs_block_counter). */
extern struct rs_mutex rs_peak_lock;

/* The caller of the functions below holds the lock. */
void rs_peak_watch_begin(struct rs_peak_watch *watch);
void rs_peak_watch_end(struct rs_peak_watch *watch);

/* Restarts the peaks (rs_block_counts_restart), and tells all watches. */
void rs_peaks_restart(enum rs_kind kind, int device);

/* The same with rs_block_counts_forget_peaks. */
void rs_peaks_forget(enum rs_kind kind, int device);

/* In a child after fork(), whose parent's thread may have held the lock: frees it, and forgets all
 * watches. */
void rs_peak_watches_forget(void);
