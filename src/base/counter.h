/* SPDX-License-Identifier: Apache-2.0 */
/* Counters that are written under their owner's lock and read without it.  No locked instruction is
 * needed, and whoever asks now and then writes no cache line that others use. */
#pragma once

#include "base/check.h"

#include <stdatomic.h>
#include <stddef.h>

static inline size_t rs_counter_get(const _Atomic size_t *counter)
{
    return atomic_load_explicit(counter, memory_order_acquire);
}

/* Under the lock. */
static inline void rs_counter_add(_Atomic size_t *counter, size_t by)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + by,
                          memory_order_release);
}

/* Under the lock. */
static inline void rs_counter_subtract(_Atomic size_t *counter, size_t by)
{
    RS_ASSERT_SLOW(atomic_load_explicit(counter, memory_order_relaxed) >= by);
    rs_counter_add(counter, (size_t)0 - by);
}

/* What is held and not live, of two such counters.  Live is read first: a block that is freed and
 * given back in between makes it too little, never too much. */
static inline size_t rs_counter_idle(const _Atomic size_t *held_bytes,
                                     const _Atomic size_t *live_bytes)
{
    size_t live = rs_counter_get(live_bytes), held = rs_counter_get(held_bytes);

    return held > live ? held - live : 0;
}
