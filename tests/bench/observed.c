/* SPDX-License-Identifier: Apache-2.0 */
/* What observed.py calls: pairs of cudaMalloc and cudaFree below a stack of frames like that of a
 * framework, compiled without frame pointers, as most libraries are. */
#include <cuda_runtime_api.h>
#include <stddef.h>

int observed_pairs(unsigned frames, unsigned count, size_t bytes);

static __attribute__((noinline)) int pairs(unsigned count, size_t bytes)
{
    int wrong = 0;

    for (unsigned i = 0; i < count; i++) {
        void *block = NULL;
        wrong |= cudaMalloc(&block, bytes);
        wrong |= cudaFree(block);
    }
    return wrong;
}

/* Two functions of different frames call each other, so that a stack is no row of one address. */
static __attribute__((noinline)) int descend_small(unsigned frames, unsigned count, size_t bytes);

static __attribute__((noinline)) int descend_large(unsigned frames, unsigned count, size_t bytes)
{
    volatile char taken[200];
    int wrong;

    taken[0] = (char)frames;
    wrong = frames == 0 ? pairs(count, bytes) : descend_small(frames - 1, count, bytes);
    return wrong | (taken[0] != (char)frames);
}

static int descend_small(unsigned frames, unsigned count, size_t bytes)
{
    volatile unsigned kept = frames;
    int wrong = frames == 0 ? pairs(count, bytes) : descend_large(frames - 1, count, bytes);

    return wrong | (kept != frames);
}

/* Returns 0 when no call failed. */
int observed_pairs(unsigned frames, unsigned count, size_t bytes)
{
    return descend_small(frames, count, bytes);
}
