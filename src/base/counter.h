/* SPDX-License-Identifier: Apache-2.0 */
/* Counters that are written under their owner's lock and read without it.  The lock excludes
 * other writers, so an update is a plain load and store without a locked instruction, and a
 * reader never writes the counter's cache line. */
#pragma once

#include "base/check.h"

#include <stdatomic.h>
#include <stddef.h>

static inline size_t rs_counter_get(const _Atomic size_t *counter)
{
    return atomic_load_explicit(counter, memory_order_acquire);
}

/* Adds `by` to the counter.  The caller holds the owner's lock. */
static inline void rs_counter_add(_Atomic size_t *counter, size_t by)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
                          memory_order_release);
}

/* Subtracts `by` from the counter.  The caller holds the owner's lock. */
static inline void rs_counter_subtract(_Atomic size_t *counter, size_t by)
{
    RS_ASSERT_SLOW(atomic_load_explicit(counter, memory_order_relaxed) >= by);
    rs_counter_add(counter, (size_t)0 - by);
}

/* Raises a peak that several threads may raise at once, without a lock. */
static inline void rs_counter_raise(_Atomic size_t *peak, size_t to)
{
    size_t seen = atomic_load_explicit(peak, memory_order_relaxed);

    while (to > seen && !atomic_compare_exchange_weak_explicit(
                            peak, &seen, to, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* Returns held minus live bytes: memory that is held and not handed out.  Live is read first: a
 * block that is freed and given back between the two reads makes the result too small, never too
 * large. */
static inline size_t rs_counter_idle(const _Atomic size_t *held_bytes,
                                     const _Atomic size_t *live_bytes)
{
    size_t live = rs_counter_get(live_bytes), held = rs_counter_get(held_bytes);

    return held > live ? held - live : 0;
}
