/* SPDX-License-Identifier: Apache-2.0 */
/* trace_replay [--async] TRACE: plays a trace by cudaMalloc and cudaFree, or by cudaMallocAsync and
 * cudaFreeAsync on its streams.  Run it under what is to be measured, or under nothing for the
 * driver itself. */
#include "trace.h"

#include <stdio.h>
#include <string.h>

static void *allocate(size_t bytes, cudaStream_t stream)
{
    void *block = NULL;

    (void)stream;
    return cudaMalloc(&block, bytes) == cudaSuccess ? block : NULL;
}

static void deallocate(void *block, size_t bytes, cudaStream_t stream)
{
    (void)bytes;
    (void)stream;
    (void)cudaFree(block);
}

static void *allocate_async(size_t bytes, cudaStream_t stream)
{
    void *block = NULL;

    return cudaMallocAsync(&block, bytes, stream) == cudaSuccess ? block : NULL;
}

static void deallocate_async(void *block, size_t bytes, cudaStream_t stream)
{
    (void)bytes;
    (void)cudaFreeAsync(block, stream);
}

static const struct trace_player player = {allocate, deallocate};
static const struct trace_player player_async = {allocate_async, deallocate_async};

int main(int argc, char **argv)
{
    int async = argc > 1 && strcmp(argv[1], "--async") == 0;

    if (argc != 2 + async) {
        fprintf(stderr, "usage: trace_replay [--async] TRACE\n");
        return TRACE_BAD;
    }
    return trace_play(argv[1 + async], async ? &player_async : &player);
}
