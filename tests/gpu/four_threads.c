/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that never hold more than one block each, all of one size: with room for all of them no
 * memory can be in pieces, and no request may be refused.  Each block is written by work that may
 * still run when it is freed.
 *
 * four_threads SECONDS [BLOCK-BYTES [THREADS]]   (8 MiB, 4)
 *
 * Prints "allocations N refused R served-when-asked-again S".  Status 1: R is not 0; 3: a thread
 * stands still for two minutes. */
#include "sample.h"
#include "still.h"

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

enum { THREADS_MAX = 32 };

static struct thread {
    pthread_t thread;
    struct progress *progress; /* a step: an allocation */
    unsigned long refused, served_again;
} threads[THREADS_MAX];
static unsigned thread_count = 4;
static size_t block_bytes = 8 << 20;
static double seconds;
static CUcontext context;

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static bool take(struct thread *self, CUdeviceptr *block)
{
    CUresult answer = cuMemAlloc(block, block_bytes);

    self->progress->steps++;
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) {
        self->refused++;
        answer = cuMemAlloc(block, block_bytes);
        self->served_again += !answer;
    }
    if (answer != CUDA_ERROR_OUT_OF_MEMORY)
        MUST(answer);
    return !answer;
}

static void *work(void *argument)
{
    struct thread *self = argument;
    double end_s = now_s() + seconds;
    CUstream stream;
    CUdeviceptr block;

    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (now_s() < end_s) {
        if (!take(self, &block))
            continue;
        /* little of it: the more blocks, the better */
        MUST(cuMemsetD8Async(block, 1, 4096, stream));
        MUST(cuMemFree(block));
    }
    self->progress->is_done = true;
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamDestroy(stream));
    return NULL;
}

int main(int argc, char **argv)
{
    unsigned long allocations = 0, refused = 0, served_again = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: four_threads SECONDS [BLOCK-BYTES [THREADS]]\n");
        return 2;
    }
    seconds = strtod(argv[1], NULL);
    if (argc > 2)
        block_bytes = strtoull(argv[2], NULL, 10);
    if (argc > 3)
        thread_count = (unsigned)strtoul(argv[3], NULL, 10);
    if (!thread_count || thread_count > THREADS_MAX)
        return 2;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    still_watch_start("four_threads", thread_count);
    for (unsigned i = 0; i < thread_count; i++) {
        threads[i].progress = &progress[i];
        pthread_create(&threads[i].thread, NULL, work, &threads[i]);
    }
    for (unsigned i = 0; i < thread_count; i++) {
        pthread_join(threads[i].thread, NULL);
        allocations += progress[i].steps;
        refused += threads[i].refused;
        served_again += threads[i].served_again;
    }
    MUST(cuDevicePrimaryCtxRelease(0));
    printf("allocations %lu refused %lu served-when-asked-again %lu\n", allocations, refused,
           served_again);
    return refused > 0;
}
