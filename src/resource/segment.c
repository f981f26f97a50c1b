/* SPDX-License-Identifier: Apache-2.0 */
/* Segments, in one address map for the whole process. */
#include "resource/segment.h"

#include "base/address_map.h"

#include <stdatomic.h>

static _Atomic(struct rs_address_map *) segments;

/* A range's owner in the map is the address of its environment.  The lowest bit of that address is
 * set when the memory outlives its context. */
enum { LASTING = 1 };

static void *owner_of(const struct rs_environment *environment, bool is_lasting)
{
    return (void *)((uintptr_t)environment | (is_lasting ? LASTING : 0));
}

static const struct rs_environment *environment_of(const void *owner)
{
    return (const struct rs_environment *)((uintptr_t)owner & ~(uintptr_t)LASTING);
}

bool rs_segment_add(const struct rs_environment *environment, CUdeviceptr start, size_t size_bytes,
                    bool is_lasting)
{
    struct rs_address_map *map = atomic_load_explicit(&segments, memory_order_acquire);

    if (!map)
        map = rs_address_map_create_at(&segments);
    return map && rs_address_map_insert(map, start, size_bytes, owner_of(environment, is_lasting));
}

void rs_segment_remove(const struct rs_environment *environment, CUdeviceptr start)
{
    struct rs_address_map *map = atomic_load_explicit(&segments, memory_order_acquire);

    if (map && !rs_address_map_remove(map, start, owner_of(environment, false)))
        (void)rs_address_map_remove(map, start, owner_of(environment, true));
}

/* True when the segment still has its memory: the memory outlives its context, or the context has
 * not ended.  is_inside: the segment contains the address that is looked up; if not, the result is
 * false already when the context may have lost any memory (rs_address_map_find_inside_if). */
static bool is_counted(const struct rs_range *range, bool is_inside)
{
    const struct rs_environment *environment = environment_of(range->owner);

    return (uintptr_t)range->owner & LASTING || !environment->has_memory ||
           environment->has_memory(environment, is_inside ? range->start : 0);
}

bool rs_segment_find(CUdeviceptr address, struct rs_segment *segment)
{
    struct rs_address_map *map = atomic_load_explicit(&segments, memory_order_acquire);
    struct rs_range range;

    if (!map || !rs_address_map_find_inside_if(map, address, is_counted, &range))
        return false;
    *segment = (struct rs_segment){range.start, range.size_bytes, environment_of(range.owner)};
    return true;
}

static bool remove_if_owned(void *environment, const struct rs_range *range)
{
    if (environment_of(range->owner) == environment)
        (void)rs_address_map_remove(atomic_load(&segments), range->start, range->owner);
    return true;
}

void rs_segment_remove_all(const struct rs_environment *environment)
{
    struct rs_address_map *map = atomic_load_explicit(&segments, memory_order_acquire);

    if (map)
        rs_address_map_each(map, remove_if_owned, (void *)(uintptr_t)environment);
}
