/* SPDX-License-Identifier: Apache-2.0 */
/* Segments, in one address map for the whole process. */
#include "resource/segment.h"

#include "base/address_map.h"

#include <stdatomic.h>

static _Atomic(struct rs_address_map *) segments;

static struct rs_address_map *map_or_create(void)
{
    struct rs_address_map *map = atomic_load_explicit(&segments, memory_order_acquire);
    struct rs_address_map *created;

    if (map)
        return map;
    created = rs_address_map_create();
    if (created && !atomic_compare_exchange_strong(&segments, &map, created)) {
        rs_address_map_destroy(created); /* another thread was first */
        return map;
    }
    return created;
}

bool rs_segment_add(const struct rs_environment *environment, CUdeviceptr start, size_t size_bytes)
{
    struct rs_address_map *map = map_or_create();

    return map && rs_address_map_insert(map, start, size_bytes, (void *)(uintptr_t)environment);
}

void rs_segment_remove(const struct rs_environment *environment, CUdeviceptr start)
{
    struct rs_address_map *map = atomic_load_explicit(&segments, memory_order_acquire);

    if (map)
        (void)rs_address_map_remove(map, start, (void *)(uintptr_t)environment);
}

bool rs_segment_find(CUdeviceptr address, struct rs_segment *segment)
{
    struct rs_address_map *map = atomic_load_explicit(&segments, memory_order_acquire);
    struct rs_range range;

    if (!map || !rs_address_map_find_inside(map, address, &range))
        return false;
    *segment = (struct rs_segment){range.start, range.size_bytes, range.owner};
    return true;
}

static bool remove_if_owned(void *environment, const struct rs_range *range)
{
    if (range->owner == environment)
        (void)rs_address_map_remove(atomic_load(&segments), range->start, environment);
    return true;
}

void rs_segment_remove_all(const struct rs_environment *environment)
{
    struct rs_address_map *map = atomic_load_explicit(&segments, memory_order_acquire);

    if (map)
        rs_address_map_each(map, remove_if_owned, (void *)(uintptr_t)environment);
}
