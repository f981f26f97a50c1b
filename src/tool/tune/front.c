/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/front.h"

/* Below zero: a is better. */
static int compare(uint64_t a, uint64_t b, uint64_t then_a, uint64_t then_b)
{
    if (a == b)
        return (then_a > then_b) - (then_a < then_b);
    return a < b ? -1 : 1;
}

static int compare_held(const struct tune_point *a, const struct tune_point *b)
{
    return compare(a->held_bytes, b->held_bytes, a->stops, b->stops);
}

static int compare_stops(const struct tune_point *a, const struct tune_point *b)
{
    return compare(a->stops, b->stops, a->held_bytes, b->held_bytes);
}

/* Of the points with fewer stops than `below`, the one with the least held. */
static size_t next_of_front(const struct tune_point *points, size_t count, uint64_t below)
{
    size_t best = TUNE_NONE;

    for (size_t i = 0; i < count; i++)
        if (!points[i].is_out && points[i].stops < below &&
            (best == TUNE_NONE || compare_held(&points[i], &points[best]) < 0))
            best = i;
    return best;
}

size_t tune_front(const struct tune_point *points, size_t count, size_t *front)
{
    uint64_t below = UINT64_MAX;
    size_t found = 0, next;

    while ((next = next_of_front(points, count, below)) != TUNE_NONE) {
        front[found++] = next;
        below = points[next].stops;
    }
    return found;
}

size_t tune_thin(size_t *front, size_t count, size_t most)
{
    if (count <= most)
        return count;
    for (size_t i = 0; i < most; i++)
        front[i] = front[i * (count - 1) / (most - 1)];
    return most;
}

static bool is_better(const struct tune_point *a, const struct tune_point *b,
                      enum tune_wish_kind wish)
{
    if (a->is_bounded != b->is_bounded)
        return b->is_bounded;
    return (wish == TUNE_FOOTPRINT ? compare_held : compare_stops)(a, b) < 0;
}

size_t tune_best(const struct tune_point *points, size_t count, const struct tune_wish *wish)
{
    size_t best = TUNE_NONE;

    for (size_t i = 0; i < count; i++) {
        bool is_within = wish->kind != TUNE_LIMIT || points[i].held_bytes <= wish->limit_bytes;
        if (points[i].is_out || !is_within)
            continue;
        if (best == TUNE_NONE || is_better(&points[i], &points[best], wish->kind))
            best = i;
    }
    return best;
}
