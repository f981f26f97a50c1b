/* SPDX-License-Identifier: Apache-2.0 */
/* Size arithmetic.  Overflow is reported to the caller. */
#pragma once

#include "base/check.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool rs_is_power_of_two(size_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* Rounds value up to a multiple of unit (a power of two).  Returns false when the result would
 * exceed SIZE_MAX; *rounded is then undefined. */
static inline bool rs_round_up(size_t value, size_t unit, size_t *rounded)
{
    RS_ASSERT_SLOW(rs_is_power_of_two(unit));
    if (__builtin_add_overflow(value, unit - 1, rounded))
        return false;
    *rounded &= ~(unit - 1);
    return true;
}

/* Rounds value down to a multiple of unit (a power of two). */
static inline size_t rs_round_down(size_t value, size_t unit)
{
    RS_ASSERT_SLOW(rs_is_power_of_two(unit));
    return value & ~(unit - 1);
}

static inline size_t rs_min(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline size_t rs_max(size_t a, size_t b)
{
    return a > b ? a : b;
}
