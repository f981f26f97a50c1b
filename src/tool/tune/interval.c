/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/interval.h"

#include "base/check.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Returns how many numbers lie outside the interval at each end.  Each number is below the true
 * median with probability 1/2, so how many are below it has a binomial distribution.  The result is
 * the largest k for which at most k of them are below it with a probability of 2.5 % or less. */
static size_t outside(size_t count)
{
    const double most = 0.025;
    double share = 1, sum;
    size_t outside = 0;

    for (size_t i = 0; i < count; i++)
        share /= 2;
    for (sum = share;; outside++) {
        share *= (double)(count - outside) / (double)(outside + 1);
        sum += share;
        if (sum > most)
            return outside;
    }
}

struct interval interval_of(double *numbers, size_t count)
{
    size_t from = outside(count);

    RS_ASSERT(count >= INTERVAL_LEAST);
    qsort(numbers, count, sizeof(*numbers), compare);
    return (struct interval){(numbers[(count - 1) / 2] + numbers[count / 2]) / 2, numbers[from],
                             numbers[count - 1 - from]};
}
