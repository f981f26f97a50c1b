// SPDX-License-Identifier: Apache-2.0
// A loop of Thrust's algorithms, which take temporary memory by cudaMalloc and free it again.
//
//   thrust_loop NUMBERS    prints `ms_per_iteration X`, and what it computed on standard error
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

static double iteration(const thrust::device_vector<unsigned> &numbers)
{
    thrust::device_vector<unsigned> sorted(numbers.begin(), numbers.end());
    thrust::sort(sorted.begin(), sorted.end());
    thrust::device_vector<unsigned> sums(sorted.size());
    thrust::inclusive_scan(sorted.begin(), sorted.end(), sums.begin());
    return thrust::reduce(sums.begin(), sums.end(), 0.0);
}

int main(int argc, char **argv)
{
    enum { WARM = 20, ITERATIONS = 200 };
    thrust::device_vector<unsigned> numbers(argc > 1 ? atoi(argv[1]) : 1 << 20);
    double sum = 0;

    thrust::sequence(numbers.rbegin(), numbers.rend());
    for (int i = 0; i < WARM; i++)
        sum = iteration(numbers);
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < ITERATIONS; i++)
        sum = iteration(numbers);
    cudaDeviceSynchronize();
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    printf("ms_per_iteration %.6f\n", took.count() / ITERATIONS);
    fprintf(stderr, "sum %.0f\n", sum);
    return 0;
}
