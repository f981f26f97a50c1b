/* SPDX-License-Identifier: Apache-2.0 */
/* Vector clocks: how far each stream is known to have come. Component i counts the operations of
 * the stream that owns slot i. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct hc_clock {
    uint64_t *ticks;
    unsigned count;
};

/* Sets each component of `into` to the later of both. */
void hc_clock_join(struct hc_clock *into, const struct hc_clock *from);
void hc_clock_set(struct hc_clock *clock, unsigned slot, uint64_t tick);
void hc_clock_clear(struct hc_clock *clock);

static inline uint64_t hc_clock_get(const struct hc_clock *clock, unsigned slot)
{
    return slot < clock->count ? clock->ticks[slot] : 0;
}
