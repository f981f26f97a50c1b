/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/size.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"
#include "tool/tune/tune.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT_BYTES = 2 << 20, PERCENT = 100 };

/* The resources that are tried. None has a maximum size (so `arena` is missing), since the next run
 * of the program may need more than the recorded one. `percent` is the initial size as a share of
 * the recording's peak of used bytes; 0: no initial size is given. */
static const struct {
    const char *resource;
    unsigned percent;
} tried[] = {
    {"cuda", 0},
    {"pool(cuda)", 0},
    {"pool(cuda, initial_size=", 100},
    {"pool(cuda, initial_size=", 110},
    {"pool(cuda, initial_size=", 125},
    {"pool(cuda, initial_size=", 150},
    {"binning(pool(cuda), minimum_size=256KiB, maximum_size=4MiB)", 0},
    {"virtual", 0},
    {"virtual(granularity=2MiB)", 0},
};
_Static_assert(RS_ARRAY_LENGTH(tried) <= TUNE_CANDIDATES_MAX, "all have room");

/* Returns the number of driver calls and waits, which take time; a replay does not know how much.
 */
static uint64_t stops_of(const struct tune_candidate *candidate)
{
    return candidate->result.driver_calls + candidate->result.waits;
}

/* Replays tried[number]. Leaves out a pool whose initial size is above the limit, and one that is
 * equal to the candidate before, since shares of a small peak may round up to the same size. */
static void add(struct tune_candidates *candidates, size_t number, const struct sequence *sequence,
                const struct replay_settings *settings)
{
    struct tune_candidate *one = &candidates->all[candidates->count];
    struct rs_diagnostics nobody = {.write = tool_ignore_line};
    uint64_t bytes = sequence->recorded.used_peak * tried[number].percent / PERCENT;
    char size[RS_SIZE_TEXT_BYTES];

    bytes = (bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
    rs_size_format(bytes, size);
    snprintf(one->resource, sizeof(one->resource), "%s%s%s", tried[number].resource,
             tried[number].percent ? size : "", tried[number].percent ? ")" : "");
    if ((settings->limit_bytes && bytes > settings->limit_bytes) ||
        (candidates->count && strcmp(one[-1].resource, one->resource) == 0) ||
        !replay_play(sequence, one->resource, settings, &nobody, &one->result))
        return;
    one->serves = one->result.refusals <= sequence->recorded.refusals;
    candidates->count++;
}

static int compare_held(const void *a, const void *b)
{
    const struct tune_candidate *left = a, *right = b;
    uint64_t left_stops = stops_of(left), right_stops = stops_of(right);
    uint64_t left_held = left->result.held_peak, right_held = right->result.held_peak;

    return left_held != right_held ? (left_held > right_held) - (left_held < right_held)
                                   : (left_stops > right_stops) - (left_stops < right_stops);
}

void tune_replay(struct tune_candidates *candidates, const struct sequence *sequence,
                 const struct replay_settings *settings)
{
    uint64_t fewest = UINT64_MAX; /* the fewest stops of earlier candidates, which hold no more */

    for (size_t i = 0; i < RS_ARRAY_LENGTH(tried); i++) {
        progress_show("replaying", i, RS_ARRAY_LENGTH(tried));
        add(candidates, i, sequence, settings);
    }
    progress_clear();
    qsort(candidates->all, candidates->count, sizeof(candidates->all[0]), compare_held);
    for (size_t i = 0; i < candidates->count; i++) {
        struct tune_candidate *one = &candidates->all[i];
        one->on_front = one->serves && stops_of(one) < fewest;
        fewest = one->on_front ? stops_of(one) : fewest;
    }
}

/* Of the candidates on the front, the first holds the least, and the last has the fewest stops. */
struct tune_candidate *tune_best(struct tune_candidates *candidates, enum tune_wish wish)
{
    struct tune_candidate *best = NULL;

    for (size_t i = 0; i < candidates->count; i++)
        if (candidates->all[i].on_front && (!best || wish != TUNE_FOOTPRINT))
            best = &candidates->all[i];
    return best;
}
