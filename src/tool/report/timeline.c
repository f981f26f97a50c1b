/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/report/timeline.h"

#include "base/check.h"
#include "tool/tool.h"

#include <stdlib.h>

enum { FIRST_WIDTH_NS = 1024 };

static void merge(struct timeline_bucket *into, const struct timeline_bucket *later)
{
    into->least_used = rs_min(into->least_used, later->least_used);
    into->most_used = rs_max(into->most_used, later->most_used);
    into->last_used = later->last_used;
    into->most_held = rs_max(into->most_held, later->most_held);
    into->last_held = later->last_held;
    into->limit = later->limit;
}

/* Makes each bucket twice as wide. */
static void widen(struct timeline *timeline)
{
    struct timeline_bucket *buckets = timeline->buckets;
    size_t kept = 0;

    for (size_t i = 0; i < timeline->count; i++) {
        buckets[i].index /= 2;
        if (kept > 0 && buckets[kept - 1].index == buckets[i].index)
            merge(&buckets[kept - 1], &buckets[i]);
        else
            buckets[kept++] = buckets[i];
    }
    timeline->count = kept;
    timeline->width_ns *= 2;
}

void timeline_add(struct timeline *timeline, uint64_t ns, uint64_t used, uint64_t held,
                  uint64_t limit)
{
    struct timeline_bucket bucket = {0, used, used, used, held, held, limit}, *last;

    if (!timeline->width_ns) {
        timeline->buckets = tool_grow(NULL, TIMELINE_BUCKETS * sizeof(*timeline->buckets));
        timeline->width_ns = FIRST_WIDTH_NS;
    }
    while (timeline->count == TIMELINE_BUCKETS)
        widen(timeline);
    bucket.index = ns / timeline->width_ns;
    last = timeline->count ? &timeline->buckets[timeline->count - 1] : NULL;
    if (last && last->index >= bucket.index)
        merge(last, &bucket);
    else
        timeline->buckets[timeline->count++] = bucket;
}

void timeline_shrink(struct timeline *timeline, size_t buckets_max)
{
    while (timeline->count > rs_max(buckets_max, 1))
        widen(timeline);
}
