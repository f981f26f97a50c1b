/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void grow(struct hc_clock *clock, unsigned count)
{
    if (count <= clock->count)
        return;
    uint64_t *ticks = realloc(clock->ticks, count * sizeof(*ticks));
    if (!ticks) {
        perror("hostcuda: clock");
        abort();
    }
    memset(ticks + clock->count, 0, (count - clock->count) * sizeof(*ticks));
    clock->ticks = ticks;
    clock->count = count;
}

void hc_clock_join(struct hc_clock *into, const struct hc_clock *from)
{
    grow(into, from->count);
    for (unsigned i = 0; i < from->count; i++) {
        if (from->ticks[i] > into->ticks[i])
            into->ticks[i] = from->ticks[i];
    }
}

void hc_clock_set(struct hc_clock *clock, unsigned slot, uint64_t tick)
{
    grow(clock, slot + 1);
    clock->ticks[slot] = tick;
}

void hc_clock_clear(struct hc_clock *clock)
{
    free(clock->ticks);
    clock->ticks = NULL;
    clock->count = 0;
}
