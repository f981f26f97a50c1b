/* SPDX-License-Identifier: Apache-2.0 */
/* A median with a confidence interval that assumes nothing about the distribution of the numbers.
 */
#pragma once

#include <stddef.h>

enum { INTERVAL_LEAST = 6 }; /* the fewest numbers that give an interval of 95 % */

struct interval {
    double median, low, high;
};

/* Returns the median of INTERVAL_LEAST or more numbers, and two of them that are the ends of a
 * confidence interval of at least 95 % for the median of their distribution.  Sorts the numbers. */
struct interval interval_of(double *numbers, size_t count);
