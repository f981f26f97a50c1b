/* SPDX-License-Identifier: Apache-2.0 */
/* RMM's size classes for arenas: multiples of 256 bytes up to 2 KiB, then four classes per
 * doubling, up to 256 GiB.  (RMM's own table says 54 KiB where 56 KiB is meant.) */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Returns the smallest class of at least size_bytes (> 0), in bytes; SIZE_MAX above the largest
 * class. */
static inline size_t rs_size_class(size_t size_bytes)
{
    const size_t least_step = 256, largest = (size_t)256 << 30;
    size_t step = least_step;

    if (size_bytes > largest)
        return SIZE_MAX;
    while (8 * step < size_bytes) /* four steps lead from 4 * step to 8 * step */
        step *= 2;
    return (size_bytes + step - 1) / step * step;
}
