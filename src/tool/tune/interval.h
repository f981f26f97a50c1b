/* SPDX-License-Identifier: Apache-2.0 */
/* Medians with intervals that take nothing of how the numbers are distributed. */
#pragma once

#include <stddef.h>

enum { INTERVAL_LEAST = 6 }; /* numbers for an interval of 95 % */

struct interval {
    double median, low, high;
};

/* The median of INTERVAL_LEAST or more numbers, and two of them between which the median of what
 * they are drawn from lies, in 95 % of cases or more.  Sorts the numbers. */
struct interval interval_of(double *numbers, size_t count);
