/* SPDX-License-Identifier: Apache-2.0 */
/* Means of a few measurements, with the interval in which the true mean lies. */
#pragma once

#include <stddef.h>

struct tune_interval {
    double mean;
    double half; /* the true mean is mean +- half, with a probability of 95 % (Student's t) */
};

/* Of two values or more. */
struct tune_interval tune_interval_of(const double *values, size_t count);

/* Of the differences values[i] - others[i]: what disturbs both of a round is not in it. */
struct tune_interval tune_interval_of_pairs(const double *values, const double *others,
                                            size_t count);
