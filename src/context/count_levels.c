/* SPDX-License-Identifier: Apache-2.0 */
#include "context/count_levels.h"

#include "base/check.h"
#include "context/block_counts.h"
#include "context/peak_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct level {
    struct rs_peak_watch watch;
    enum rs_kind kind;
    int device;
    struct rs_block_counts begin; /* counts when the level was pushed */
    struct rs_block_peaks peaks; /* peaks up to the last restart, with the bytes that were live when
                                    the level began */
    struct level *around;
};

static struct level *innermost[RS_KINDS][RS_DEVICES_MAX]; /* under rs_peak_lock */

static void raise_peaks(struct rs_peak_watch *watch, enum rs_kind kind, int device,
                        struct rs_block_peaks peaks)
{
    struct level *level = RS_CONTAINER_OF(watch, struct level, watch);

    if (level->kind != kind || level->device != device)
        return;
    level->peaks.live_bytes = rs_max(level->peaks.live_bytes, peaks.live_bytes);
    level->peaks.live_blocks = rs_max(level->peaks.live_blocks, peaks.live_blocks);
}

/* The counter is made before the lock is taken. */
static void lock_levels(enum rs_kind kind, int device)
{
    (void)rs_block_counter(kind, device);
    rs_mutex_lock(&rs_peak_lock);
}

/* Returns the peak above the amount that was live when the level began: at least 0, as in RMM. More
 * may be live now than when the peak was read. */
static int64_t above(size_t begin, size_t peak, size_t now)
{
    size_t most = rs_max(peak, now);

    return (int64_t)(most - rs_min(begin, most));
}

static struct rs_count_level count(const struct level *level, struct rs_block_counts now)
{
    return (struct rs_count_level){
        .live_bytes = (int64_t)now.live_bytes - (int64_t)level->begin.live_bytes,
        .peak_live_bytes = above(level->begin.live_bytes, level->peaks.live_bytes, now.live_bytes),
        .entered_bytes = (int64_t)(now.entered_bytes - level->begin.entered_bytes),
        .live_blocks = (int64_t)now.live_blocks - (int64_t)level->begin.live_blocks,
        .peak_live_blocks =
            above(level->begin.live_blocks, level->peaks.live_blocks, now.live_blocks),
        .entered_blocks = (int64_t)(now.entered - level->begin.entered),
    };
}

static struct rs_count_level count_all(struct rs_block_counts now)
{
    const struct level whole = {.peaks = {now.peak_live_bytes, now.peak_live_blocks}};

    return count(&whole, now);
}

void rs_count_levels_get(enum rs_kind kind, int device, struct rs_count_level *level)
{
    struct level *top;

    lock_levels(kind, device);
    top = innermost[kind][device];
    if (top)
        rs_peaks_restart(kind, device);
    *level =
        top ? count(top, rs_block_counts(kind, device)) : count_all(rs_block_counts(kind, device));
    rs_mutex_unlock(&rs_peak_lock);
}

int rs_count_levels_push(enum rs_kind kind, int device)
{
    struct level *pushed = calloc(1, sizeof(*pushed));

    if (!pushed)
        return -ENOMEM;
    pushed->watch.raise = raise_peaks;
    pushed->kind = kind;
    pushed->device = device;
    lock_levels(kind, device);
    rs_peaks_restart(kind, device);
    pushed->begin = rs_block_counts(kind, device);
    pushed->around = innermost[kind][device];
    innermost[kind][device] = pushed;
    rs_peak_watch_begin(&pushed->watch);
    rs_mutex_unlock(&rs_peak_lock);
    return 0;
}

int rs_count_levels_pop(enum rs_kind kind, int device, struct rs_count_level *level)
{
    struct level *popped;

    lock_levels(kind, device);
    popped = innermost[kind][device];
    if (popped) {
        rs_peaks_restart(kind, device);
        *level = count(popped, rs_block_counts(kind, device));
        rs_peak_watch_end(&popped->watch);
        innermost[kind][device] = popped->around;
    }
    rs_mutex_unlock(&rs_peak_lock);
    free(popped);
    return popped ? 0 : -ERANGE;
}

void rs_count_levels_reset_peaks(enum rs_kind kind, int device)
{
    lock_levels(kind, device);
    rs_peaks_forget(kind, device);
    rs_mutex_unlock(&rs_peak_lock);
}

void rs_count_levels_forget(void)
{
    memset(innermost, 0, sizeof(innermost));
}
