/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/tune/interval.h"

#include "base/check.h"

#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Each number is below the median in one case of two.  So fewer than k + 1 of them are in a share
 * of cases that is a sum of binomials, which may be 2.5 % at each end. */
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
