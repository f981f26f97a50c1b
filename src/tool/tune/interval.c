/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/interval.h"

#include "base/check.h"

/* Quantiles of Student's t at 97.5 %, for 1 degree of freedom and more. */
static const double student[] = {
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
};

static double quantile(size_t degrees)
{
    size_t known = RS_ARRAY_LENGTH(student);

    return student[(degrees < known ? degrees : known) - 1];
}

/* Newton's method; libm has a function, and nothing else is needed of it. */
static double square_root(double value)
{
    double root = value > 1 ? value : 1, next;

    if (value <= 0)
        return 0;
    while ((next = (root + value / root) / 2) < root)
        root = next;
    return root;
}

struct tune_interval tune_interval_of_pairs(const double *values, const double *others,
                                            size_t count)
{
    double sum = 0, squares = 0, mean;

    for (size_t i = 0; i < count; i++)
        sum += values[i] - (others ? others[i] : 0);
    mean = sum / (double)count;
    for (size_t i = 0; i < count; i++) {
        double apart = values[i] - (others ? others[i] : 0) - mean;
        squares += apart * apart;
    }
    return (struct tune_interval){
        mean, quantile(count - 1) * square_root(squares / (double)(count - 1) / (double)count)};
}

struct tune_interval tune_interval_of(const double *values, size_t count)
{
    return tune_interval_of_pairs(values, NULL, count);
}
