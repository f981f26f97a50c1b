/* SPDX-License-Identifier: Apache-2.0 */
/* How many ranges an address map has. */
#pragma once

#include "base/address_map.h"

static inline bool count_one(void *data, const struct rs_range *range)
{
    (void)range;
    ++*(size_t *)data;
    return true;
}

static inline size_t count_ranges(struct rs_address_map *map)
{
    size_t count = 0;

    rs_address_map_each(map, count_one, &count);
    return count;
}
