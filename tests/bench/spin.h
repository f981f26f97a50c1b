/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that keeps a stream busy and touches nothing. */
#pragma once

#include "bench.h"

struct bench_spin {
    void *module, *function;
};

/* Ready to run at once: the driver loads a kernel late, and may wait for that. */
struct bench_spin bench_spin_open(void);

void bench_spin_launch(const struct bench_spin *spin, cudaStream_t stream, uint64_t us);

void bench_spin_close(struct bench_spin *spin);
