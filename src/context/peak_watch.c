/* SPDX-License-Identifier: Apache-2.0 */
#include "context/peak_watch.h"

#include "base/check.h"

#include <stddef.h>

struct rs_mutex rs_peak_lock = RS_MUTEX_INIT(RS_RANK_TABLE);
RS_RESET_IN_CHILD(context_peak_watch, rs_peak_lock);
static struct rs_peak_watch *watches;

void rs_peak_watch_begin(struct rs_peak_watch *watch)
{
    RS_ASSERT_HELD(&rs_peak_lock);
    RS_ASSERT(watch->raise);
    watch->previous = NULL;
    watch->next = watches;
    if (watches)
        watches->previous = watch;
    watches = watch;
}

void rs_peak_watch_end(struct rs_peak_watch *watch)
{
    RS_ASSERT_HELD(&rs_peak_lock);
    /* Ended twice it would take out whoever stands there now. */
    RS_ASSERT((watch->previous ? watch->previous->next : watches) == watch);
    *(watch->previous ? &watch->previous->next : &watches) = watch->next;
    if (watch->next)
        watch->next->previous = watch->previous;
}

static void tell(enum rs_kind kind, int device, struct rs_block_peaks peaks)
{
    for (struct rs_peak_watch *watch = watches; watch; watch = watch->next)
        watch->raise(watch, kind, device, peaks);
}

void rs_peaks_restart(enum rs_kind kind, int device)
{
    RS_ASSERT_HELD(&rs_peak_lock);
    tell(kind, device, rs_block_counts_restart(kind, device));
}

void rs_peaks_forget(enum rs_kind kind, int device)
{
    RS_ASSERT_HELD(&rs_peak_lock);
    tell(kind, device, rs_block_counts_forget_peaks(kind, device));
}

void rs_peak_watches_forget(void)
{
    rs_mutex_init(&rs_peak_lock, RS_RANK_TABLE);
    watches = NULL;
}
