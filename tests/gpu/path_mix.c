/* SPDX-License-Identifier: Apache-2.0 */
/* Every way to the driver's memory in one process: cuMemAlloc, cuMemAllocAsync, cuMemCreate with a
 * mapping, arrays.  Each thread has a share and never holds more, counted in the driver's pages,
 * and frees what cuMemAlloc gave while work on it may still run.
 *
 * path_mix SEED OPERATIONS SHARE-BYTES [THREADS [LETTERS [FREE-BYTES]]]
 *
 * OPERATIONS: of each thread, or, with an s behind it, for how many seconds.  1 thread; d s v a:
 * the four ways; g: half of the blocks are filled by a graph that is captured for it.  FREE-BYTES:
 * all other memory of the device is taken first, so that it is a device of that size.
 * PATH_MIX_VERBOSE: a line on stderr for each refusal.
 *
 * Prints "allocations N refused R (d D, s S, v V, a A) wrong W".  What is allocated depends on the
 * arguments alone as long as nothing is refused.  Status 1: something is wrong; 3: a thread stands
 * still for two minutes. */
#include "sample.h"
#include "still.h"

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS_MAX = 16, BLOCKS_MAX = 48, LANES = 2, WORDS = 64, LETTERS_MAX = 16 };
#define PAGE_BYTES ((size_t)2 << 20)

enum path { DRIVER, STREAM, MAPPED, ARRAY, PATHS };
static const char letters[PATHS + 1] = "dsva";

struct block {
    enum path path;
    CUdeviceptr at;
    CUarray array;
    size_t bytes, pages_bytes;
    unsigned lane, value;
};

static struct thread {
    pthread_t thread;
    struct sequence random;
    CUstream lanes[LANES];
    size_t leaving_bytes[LANES]; /* freed in the stream's order */
    struct block blocks[BLOCKS_MAX];
    unsigned count;
    size_t live_bytes;
    unsigned long allocations, refused[PATHS], wrong;
    struct progress *progress; /* a step: an operation */
} threads[THREADS_MAX];
static unsigned thread_count = 1;
static unsigned long operations;
static double end_s; /* in place of a number of operations, unless 0 */
static bool wants_graphs;
static size_t share_bytes;
static enum path paths[LETTERS_MAX];
static unsigned path_count;
static CUcontext context;
static size_t granularity_bytes;

static size_t round_up(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

static CUmemAllocationProp here(void)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return prop;
}

static CUresult map_new(struct block *block)
{
    CUmemAllocationProp prop = here();
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUresult answer = cuMemCreate(&handle, block->pages_bytes, &prop, 0);

    if (answer)
        return answer;
    MUST(cuMemAddressReserve(&block->at, block->pages_bytes, 0, 0, 0));
    MUST(cuMemMap(block->at, block->pages_bytes, 0, handle, 0));
    MUST(cuMemSetAccess(block->at, block->pages_bytes, &access, 1));
    MUST(cuMemRelease(handle));
    return CUDA_SUCCESS;
}

static CUresult array_new(struct block *block)
{
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 16384, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};

    shape.Height = block->pages_bytes / shape.Width;
    return cuArrayCreate(&block->array, &shape);
}

static CUresult take(struct thread *self, struct block *block)
{
    switch (block->path) {
    case DRIVER:
        return cuMemAlloc(&block->at, block->bytes);
    case STREAM:
        return cuMemAllocAsync(&block->at, block->bytes, self->lanes[block->lane]);
    case MAPPED:
        return map_new(block);
    case ARRAY:
    case PATHS:
        break;
    }
    return array_new(block);
}

static void drain(struct thread *self, unsigned lane)
{
    MUST(cuStreamSynchronize(self->lanes[lane]));
    self->live_bytes -= self->leaving_bytes[lane];
    self->leaving_bytes[lane] = 0;
}

static CUdeviceptr end_of(const struct block *block)
{
    return block->at + (block->bytes / 4 - WORDS) * 4;
}

static void set_words(const struct block *block, CUstream lane)
{
    MUST(cuMemsetD32Async(block->at, block->value, block->bytes / 8, lane));
    MUST(cuMemsetD32Async(end_of(block), block->value, WORDS, lane));
}

/* The graph may still run when it is destroyed. */
static void set_words_by_graph(const struct block *block, CUstream lane)
{
    CUgraph graph;
    CUgraphExec exec;

    MUST(cuStreamBeginCapture(lane, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    set_words(block, lane);
    MUST(cuStreamEndCapture(lane, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, lane));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(graph));
}

static void fill(struct thread *self, struct block *block)
{
    CUstream lane = self->lanes[block->lane];

    if (block->path == ARRAY)
        return;
    block->value = (unsigned)sequence_next(&self->random);
    if (wants_graphs && sequence_below(&self->random, 2))
        set_words_by_graph(block, lane);
    else
        set_words(block, lane);
}

static void check(struct thread *self, const struct block *block)
{
    unsigned words[2][WORDS];

    if (block->path == ARRAY)
        return;
    MUST(cuMemcpyDtoHAsync(words[0], block->at, sizeof(words[0]), self->lanes[block->lane]));
    MUST(cuMemcpyDtoHAsync(words[1], end_of(block), sizeof(words[1]), self->lanes[block->lane]));
    drain(self, block->lane);
    for (unsigned i = 0; i < 2 * WORDS; i++)
        self->wrong += words[i / WORDS][i % WORDS] != block->value;
}

/* What the driver's pool holds is what other paths may miss. */
static void tell_refusal(const struct thread *self, const struct block *block)
{
    cuuint64_t reserved = 0, used = 0;
    size_t free_bytes, total_bytes, live_bytes = 0;
    CUmemoryPool pool;

    if (!getenv("PATH_MIX_VERBOSE"))
        return;
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    MUST(cuDeviceGetMemPool(&pool, 0));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    for (unsigned i = 0; i < thread_count; i++)
        live_bytes += threads[i].live_bytes;
    fprintf(stderr,
            "path_mix: refused %c %zu at %lu; live %zu free %zu total %zu, pool reserved %llu used "
            "%llu\n",
            letters[block->path], block->bytes, (unsigned long)self->progress, live_bytes,
            free_bytes, total_bytes, (unsigned long long)reserved, (unsigned long long)used);
}

static void allocate(struct thread *self)
{
    size_t most_bytes = share_bytes - self->live_bytes;
    struct block block = {.path = paths[sequence_below(&self->random, path_count)]};
    CUresult answer;

    block.lane = (unsigned)sequence_below(&self->random, LANES);
    if (self->count == BLOCKS_MAX || most_bytes < PAGE_BYTES)
        return;
    block.bytes = PAGE_BYTES / 2 + 256 + sequence_below(&self->random, share_bytes / 3);
    block.bytes = block.bytes / 4 * 4;
    if (block.bytes > most_bytes)
        block.bytes = most_bytes;
    block.pages_bytes =
        round_up(block.bytes, block.path == MAPPED ? granularity_bytes : PAGE_BYTES);
    self->allocations++;
    answer = take(self, &block);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) {
        self->refused[block.path]++;
        tell_refusal(self, &block);
        return;
    }
    MUST(answer);
    self->live_bytes += block.pages_bytes;
    fill(self, &block);
    self->blocks[self->count++] = block;
}

static void give(struct thread *self, const struct block *block)
{
    if (sequence_below(&self->random, 4) == 0)
        check(self, block);
    if (block->path == STREAM) {
        MUST(cuMemFreeAsync(block->at, self->lanes[block->lane]));
        self->leaving_bytes[block->lane] += block->pages_bytes;
        return;
    }
    if (block->path == MAPPED) { /* an unmap does not wait */
        drain(self, block->lane);
        MUST(cuMemUnmap(block->at, block->pages_bytes));
        MUST(cuMemAddressFree(block->at, block->pages_bytes));
    } else if (block->path == ARRAY) {
        MUST(cuArrayDestroy(block->array));
    } else {
        MUST(cuMemFree(block->at));
    }
    self->live_bytes -= block->pages_bytes;
}

static void give_some(struct thread *self)
{
    unsigned at;
    struct block block;

    if (!self->count) {
        for (unsigned i = 0; i < LANES; i++)
            drain(self, i);
        return;
    }
    at = (unsigned)sequence_below(&self->random, self->count);
    block = self->blocks[at];
    self->blocks[at] = self->blocks[--self->count];
    give(self, &block);
}

static double now_s(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *work(void *argument)
{
    struct thread *self = argument;

    MUST(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < LANES; i++)
        MUST(cuStreamCreate(&self->lanes[i], CU_STREAM_NON_BLOCKING));
    for (unsigned long i = 0; end_s > 0 ? now_s() < end_s : i < operations; i++) {
        if (sequence_below(&self->random, 100) < 55)
            allocate(self);
        else
            give_some(self);
        if (sequence_below(&self->random, 8) == 0)
            drain(self, (unsigned)sequence_below(&self->random, LANES));
        self->progress->steps++;
    }
    while (self->count)
        give_some(self);
    for (unsigned i = 0; i < LANES; i++) {
        drain(self, i);
        MUST(cuStreamDestroy(self->lanes[i]));
    }
    self->progress->is_done = true;
    return NULL;
}

static void read_paths(const char *list)
{
    for (; *list; list++) {
        const char *letter = strchr(letters, *list);
        if (*list == 'g') {
            wants_graphs = true;
            continue;
        }
        CHECK(letter && path_count < LETTERS_MAX);
        paths[path_count++] = (enum path)(letter - letters);
    }
}

static unsigned long report(void)
{
    unsigned long allocations = 0, refused[PATHS] = {0}, all_refused = 0, wrong = 0;

    for (unsigned i = 0; i < thread_count; i++) {
        allocations += threads[i].allocations;
        wrong += threads[i].wrong;
        for (unsigned j = 0; j < PATHS; j++) {
            refused[j] += threads[i].refused[j];
            all_refused += threads[i].refused[j];
        }
    }
    printf("allocations %lu refused %lu (d %lu, s %lu, v %lu, a %lu) wrong %lu\n", allocations,
           all_refused, refused[DRIVER], refused[STREAM], refused[MAPPED], refused[ARRAY], wrong);
    return wrong;
}

/* Largest pieces first.  What work needs of the device by itself it has taken before. */
static void fill_device(size_t left_bytes)
{
    size_t free_bytes, total_bytes, step = (size_t)1 << 40;
    CUdeviceptr taken;

    MUST(cuMemAlloc(&taken, 2 * PAGE_BYTES));
    MUST(cuMemsetD32(taken, 1, PAGE_BYTES / 4));
    MUST(cuMemFree(taken));
    for (; step >= PAGE_BYTES; step /= 2)
        for (;;) {
            MUST(cuMemGetInfo(&free_bytes, &total_bytes));
            if (free_bytes < left_bytes + step || cuMemAlloc(&taken, step) != CUDA_SUCCESS)
                break;
        }
}

int main(int argc, char **argv)
{
    CUmemAllocationProp prop = here();
    char *unit;

    if (argc < 4) {
        fprintf(stderr, "usage: path_mix SEED OPERATIONS SHARE-BYTES "
                        "[THREADS [LETTERS [FREE-BYTES]]]\n");
        return 2;
    }
    operations = strtoul(argv[2], &unit, 10);
    if (*unit == 's')
        end_s = now_s() + (double)operations;
    share_bytes = strtoull(argv[3], NULL, 10) / PAGE_BYTES * PAGE_BYTES;
    if (argc > 4)
        thread_count = (unsigned)strtoul(argv[4], NULL, 10);
    read_paths(argc > 5 ? argv[5] : letters);
    if (!thread_count || thread_count > THREADS_MAX || share_bytes < 4 * PAGE_BYTES)
        return 2;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(
        cuMemGetAllocationGranularity(&granularity_bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CHECK(granularity_bytes <= PAGE_BYTES);
    if (argc > 6)
        fill_device(strtoull(argv[6], NULL, 10));
    still_watch_start("path_mix", thread_count);
    for (unsigned i = 0; i < thread_count; i++) {
        threads[i].progress = &progress[i];
        threads[i].random.state = strtoull(argv[1], NULL, 10) * 1000 + i;
        pthread_create(&threads[i].thread, NULL, work, &threads[i]);
    }
    for (unsigned i = 0; i < thread_count; i++)
        pthread_join(threads[i].thread, NULL);
    return report() > 0;
}
