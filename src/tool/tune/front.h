/* SPDX-License-Identifier: Apache-2.0 */
/* What is best of many stacks: the front of memory held against driver calls and waits, and the one
 * for a wish. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tune_point {
    uint64_t held_bytes; /* at the peak */
    uint64_t stops;      /* calls to the driver and waits for the GPU */
    bool is_out;         /* it did not serve everything: in no front, best for nothing */
    bool is_bounded;     /* it would refuse more than it served: best only where no other one is */
};

enum tune_wish_kind { TUNE_FOOTPRINT, TUNE_SPEED, TUNE_LIMIT };

struct tune_wish {
    enum tune_wish_kind kind;
    uint64_t limit_bytes; /* of TUNE_LIMIT */
};

#define TUNE_NONE SIZE_MAX

/* Writes the indices of the points that no other point equals or beats in both, least held first;
 * of equal points the first one.  `front` has room for all.  Returns how many. */
size_t tune_front(const struct tune_point *points, size_t count, size_t *front);

/* Leaves at most `most` (2 or more) of the front: the ends, and what lies between them at equal
 * distances.  Returns how many. */
size_t tune_thin(size_t *front, size_t count, size_t most);

/* The best one: least held; fewest stops; or fewest stops of those that hold at most the limit.
 * Where these are equal the other figure decides, then the order.  TUNE_NONE: no point serves
 * everything, or within the limit. */
size_t tune_best(const struct tune_point *points, size_t count, const struct tune_wish *wish);
