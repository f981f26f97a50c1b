/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs by several threads at once.  The threads are started once and made ready: device, stream, a
 * few pairs of their own.  Then a barrier releases them, and each makes as many pairs as the
 * others, as fast as it can.  The wall time is from the first one's beginning to the last one's
 * end; divided by the number of pairs of one thread it is that of a round, in which each thread
 * makes a pair. */
#include "bench.h"

#include "sample.h"

#include <pthread.h>
#include <sched.h>

enum { THREADS_MAX = 64, WARM = 50, PAIRS_MIN = 20, PAIRS_MAX = 1000000 };

static struct {
    const struct bench_memory *memory;
    size_t bytes;
    uint64_t budget_ns;
    bool own_streams;
    unsigned count, pairs;
    pthread_barrier_t barrier;
    cpu_set_t cores;
} common;

struct worker {
    pthread_t thread;
    unsigned index;
    uint64_t begin_ns, end_ns;
};

/* Each on a core of its own where there are enough, so that none is moved meanwhile. */
static void settle(unsigned index)
{
    unsigned left = index;

    if (CPU_COUNT(&common.cores) < (int)common.count)
        return;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (CPU_ISSET(core, &common.cores) && left-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            MUST(pthread_setaffinity_np(pthread_self(), sizeof(one), &one));
            return;
        }
    }
}

static int pairs(unsigned count, cudaStream_t stream)
{
    const struct bench_memory *memory = common.memory;
    int failed = 0;

    for (unsigned i = 0; i < count; i++) {
        void *block = NULL;
        failed |= memory->allocate(&block, common.bytes, stream);
        failed |= memory->deallocate(block, common.bytes, stream);
    }
    return failed;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    cudaStream_t stream = NULL;
    uint64_t begin, pair_ns;
    int failed;

    settle(worker->index);
    MUST(cudaSetDevice(0));
    if (common.own_streams)
        MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    MUST(pairs(WARM, stream));
    pthread_barrier_wait(&common.barrier);
    begin = bench_now_ns();
    MUST(pairs(WARM, stream));
    pair_ns = (bench_now_ns() - begin) / WARM + 1;
    if (worker->index == 0) {
        uint64_t wanted = common.budget_ns / pair_ns;
        common.pairs = (unsigned)(wanted > PAIRS_MAX ? PAIRS_MAX : wanted);
        if (common.pairs < PAIRS_MIN)
            common.pairs = PAIRS_MIN;
    }
    pthread_barrier_wait(&common.barrier);
    worker->begin_ns = bench_now_ns();
    failed = pairs(common.pairs, stream);
    worker->end_ns = bench_now_ns();
    MUST(failed);
    if (stream) {
        MUST(cudaStreamSynchronize(stream));
        pthread_barrier_wait(&common.barrier); /* no stream ends while another one's is used */
        MUST(cudaStreamDestroy(stream));
    }
    return NULL;
}

void bench_threads(const struct bench_memory *memory, unsigned count, size_t bytes,
                   uint64_t budget_ns, bool own_streams)
{
    struct worker workers[THREADS_MAX];
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;

    CHECK(count >= 1 && count <= THREADS_MAX);
    common.memory = memory;
    common.bytes = bytes;
    common.budget_ns = budget_ns;
    common.own_streams = own_streams;
    common.count = count;
    MUST(sched_getaffinity(0, sizeof(common.cores), &common.cores));
    MUST(pthread_barrier_init(&common.barrier, NULL, count));
    for (unsigned i = 0; i < count; i++) {
        workers[i].index = i;
        MUST(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
    }
    for (unsigned i = 0; i < count; i++) {
        MUST(pthread_join(workers[i].thread, NULL));
        begin_ns = workers[i].begin_ns < begin_ns ? workers[i].begin_ns : begin_ns;
        end_ns = workers[i].end_ns > end_ns ? workers[i].end_ns : end_ns;
    }
    MUST(pthread_barrier_destroy(&common.barrier));
    printf("threads%s/%u/%zu %.2f ns pairs=%u\n", own_streams ? "_own" : "", count, bytes,
           (double)(end_ns - begin_ns) / common.pairs, common.pairs);
}
