/* SPDX-License-Identifier: Apache-2.0 */
/* A random CUDA program that is right: every use of a block is ordered after the one before, by
 * streams, events or the host, and it frees as programs do that rely on cudaFree, while kernels
 * still work on the block.  So with HOSTCUDA_RACE=1 any report is a mistake of whoever handed the
 * memory out.  Each block carries a pattern of its own, which kernels check.
 *
 * random_program SEED OPERATIONS [option...]
 *   threads=N      instead of a random number up to 16
 *   live=MIB       how much one thread holds at most
 *   largest=BYTES  of a block
 *   served         allocations and frees in captures go to a library that serves them
 *   flags          kernels that wait for the host, which allocates first
 *   devicebound    only plain device memory
 *   unranged       the driver knows nothing of the blocks' ranges
 *   torch          some blocks are rmmshim_torch_alloc's, most of them freed in a stream's order
 *   async=N        of 100 blocks, more of cudaMallocAsync's than a few
 *   managed=N      of 100 blocks, managed memory; with `served` a library serves that too
 *   advised        managed blocks are advised, which no other block may show
 *   fences         at the end, with no capture left, the library must still record its fences
 */
#include "hostcuda.h"
#include "hostcudart.h"

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "random_program"
#include "failure.h"
#include "requests.h"

enum {
    THREADS_MAX = 16,
    BLOCKS_MAX = 40,
    LANES_MAX = 8, /* the first two: the legacy stream and the thread's own */
    GRAPHS_MAX = 3,
    GRAPH_BLOCKS = 3,
    MAIL_MAX = 64,
    EDGE_WORDS = 256, /* filled at each end of a block */
    WHOLE_MAX = 64 << 10,
};

/* ---- two groups that exclude each other; within one they do not ---- */

struct gate {
    pthread_mutex_t mutex;
    unsigned inside[2];
};

enum { CAPTURES, CALLS };

static bool gate_try(struct gate *gate, int group)
{
    bool entered;

    pthread_mutex_lock(&gate->mutex);
    entered = !gate->inside[!group];
    gate->inside[group] += entered;
    pthread_mutex_unlock(&gate->mutex);
    return entered;
}

static void gate_leave(struct gate *gate, int group)
{
    pthread_mutex_lock(&gate->mutex);
    gate->inside[group]--;
    pthread_mutex_unlock(&gate->mutex);
}

/* ---- the program ---- */

enum memory { PRIMARY_MEMORY, SECOND_MEMORY, MEMORIES };
enum where { PRIMARY, SECOND, GREEN, WHERES };

struct context {
    CUcontext handle;
    CUgreenCtx green;
    enum memory memory;
    struct gate null_gate; /* captures of blocking streams against uses of the NULL stream */
};

enum lane_kind { NO_LANE, LEGACY, OWN, BLOCKING, NON_BLOCKING };

struct lane {
    enum lane_kind kind;
    cudaStream_t stream;
    bool captures;
};

enum block_kind { DEVICE, DRIVER, PITCH, MANAGED, PINNED, ASYNC, ORDERED };

/* After `last` on that lane, or after an event of its own, or (neither) at once. */
struct block {
    enum block_kind kind;
    enum memory memory;
    char *at;
    size_t bytes;
    unsigned value;
    bool is_filled;
    struct lane *lane;
    cudaEvent_t event;
};

struct graph {
    cudaGraphExec_t exec;
    struct block blocks[GRAPH_BLOCKS];
    unsigned count;
    bool was_launched;
};

struct capture {
    struct lane *origin, *fork;
    enum cudaStreamCaptureMode mode;
    bool holds_null, ends_by_destroying;
    unsigned steps;
    struct graph graph;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    unsigned long long operations;
    struct context *context;
    struct lane lanes[LANES_MAX];
    struct block blocks[BLOCKS_MAX];
    unsigned block_count;
    size_t live_bytes;
    struct graph graphs[GRAPHS_MAX];
    struct capture capture;
    cudaEvent_t order_event, fork_event, join_event;
};

static struct context contexts[WHERES];
static struct gate sync_gates[MEMORIES]; /* captures against synchronising the context */
static struct gate global_gate; /* captures in global mode against unrelaxed unsafe calls */

static struct {
    pthread_mutex_t mutex;
    struct block blocks[MAIL_MAX]; /* none is on a lane */
    unsigned count;
} mail = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static unsigned *wrong_words; /* pinned: kernels count here */
static size_t live_max, largest = (size_t)24 << 20;
static unsigned async_percent, managed_percent;
static bool served, is_advised, wants_flags, device_only, has_greens, has_green_streams, one_thread,
    is_unranged;
static void *(*torch_alloc)(ssize_t size, int device, cudaStream_t stream);
static void (*torch_free)(void *block, ssize_t size, int device, cudaStream_t stream);
static _Atomic unsigned long long out_of_memories, captures_done, frees_done;

static uint64_t draw(struct worker *worker, uint64_t below)
{
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return (worker->random >> 11) % below;
}

static bool chance(struct worker *worker, unsigned percent)
{
    return draw(worker, 100) < percent;
}

static struct gate *sync_gate(struct worker *worker)
{
    return &sync_gates[worker->context->memory];
}

/* ---- calls that a capture somewhere may forbid ---- */

struct unsafe {
    bool is_relaxed, is_inside;
    enum cudaStreamCaptureMode mode;
};

static struct unsafe unsafe_begin(struct worker *worker)
{
    struct unsafe unsafe = {.mode = cudaStreamCaptureModeRelaxed};
    bool own = worker->capture.origin && worker->capture.mode != cudaStreamCaptureModeRelaxed;

    if (!own && chance(worker, 80) && gate_try(&global_gate, CALLS)) {
        unsafe.is_inside = true;
        return unsafe;
    }
    unsafe.is_relaxed = true;
    OK(cudaThreadExchangeStreamCaptureMode(&unsafe.mode));
    return unsafe;
}

static void unsafe_end(struct unsafe *unsafe)
{
    if (unsafe->is_inside)
        gate_leave(&global_gate, CALLS);
    if (unsafe->is_relaxed)
        OK(cudaThreadExchangeStreamCaptureMode(&unsafe->mode));
}

#define UNSAFE(worker, statement)                                                                  \
    do {                                                                                           \
        struct unsafe unsafe_ = unsafe_begin(worker);                                              \
        statement;                                                                                 \
        unsafe_end(&unsafe_);                                                                      \
    } while (0)

/* The same for what the library answers in the driver's stead. */
#define UNSAFE_UNLESS_SERVED(worker, statement)                                                    \
    do {                                                                                           \
        if (served)                                                                                \
            statement;                                                                             \
        else                                                                                       \
            UNSAFE(worker, statement);                                                             \
    } while (0)

/* ---- lanes ---- */

static bool is_blocking(const struct lane *lane)
{
    return lane->kind == OWN || lane->kind == BLOCKING;
}

/* Before any call with the lane's stream. */
static bool lane_enter(struct worker *worker, struct lane *lane)
{
    if (lane->kind == NO_LANE || lane->captures)
        return false;
    return lane->kind != LEGACY || gate_try(&worker->context->null_gate, CALLS);
}

static void lane_leave(struct worker *worker, struct lane *lane)
{
    if (lane->kind == LEGACY)
        gate_leave(&worker->context->null_gate, CALLS);
}

static struct lane *some_lane(struct worker *worker)
{
    return &worker->lanes[draw(worker, LANES_MAX)];
}

static void drop_event(struct block *block)
{
    if (block->event)
        OK(cudaEventDestroy(block->event));
    block->event = NULL;
}

/* Orders the block's next use on the lane, which is entered. */
static bool order(struct worker *worker, struct block *block, struct lane *lane)
{
    struct lane *before = block->lane;

    if (block->event) {
        OK(cudaStreamWaitEvent(lane->stream, block->event, 0));
        drop_event(block);
    } else if (before && before != lane) {
        bool implied = (before->kind == LEGACY && is_blocking(lane)) ||
                       (lane->kind == LEGACY && is_blocking(before));
        if (implied && chance(worker, 50)) {
            /* It needs work on this lane: without, what follows elsewhere is not ordered. */
            OK(cudaEventRecord(worker->order_event, lane->stream));
        } else {
            if (!lane_enter(worker, before))
                return false;
            OK(cudaEventRecord(worker->order_event, before->stream));
            lane_leave(worker, before);
            OK(cudaStreamWaitEvent(lane->stream, worker->order_event, 0));
        }
    }
    block->lane = lane;
    return true;
}

/* Turns "after that lane" into "after this event". */
static bool detach(struct worker *worker, struct block *block)
{
    CUcontext popped;

    if (!block->lane)
        return true;
    if (!lane_enter(worker, block->lane))
        return false;
    /* A green context's events would end with it. */
    OK(cuCtxPushCurrent_v2(contexts[block->memory == SECOND_MEMORY ? SECOND : PRIMARY].handle));
    OK(cudaEventCreateWithFlags(&block->event, cudaEventDisableTiming));
    OK(cuCtxPopCurrent_v2(&popped));
    OK(cudaEventRecord(block->event, block->lane->stream));
    lane_leave(worker, block->lane);
    block->lane = NULL;
    return true;
}

/* The host knows that the lane's work is done. */
static void lane_is_done(struct worker *worker, const struct lane *lane)
{
    for (unsigned i = 0; i < worker->block_count; i++)
        if (worker->blocks[i].lane == lane)
            worker->blocks[i].lane = NULL;
}

static void create_lane(struct worker *worker)
{
    struct lane *lane = &worker->lanes[2 + draw(worker, LANES_MAX - 2)];
    bool is_green = worker->context->green && has_green_streams;

    if (lane->kind != NO_LANE)
        return;
    if (chance(worker, 50)) {
        lane->kind = NON_BLOCKING;
        if (is_green && chance(worker, 50))
            OK(cuGreenCtxStreamCreate((CUstream *)&lane->stream, worker->context->green,
                                      CU_STREAM_NON_BLOCKING, 0));
        else
            OK(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking));
    } else {
        lane->kind = BLOCKING;
        OK(cudaStreamCreate(&lane->stream));
    }
}

/* ---- blocks ---- */

static size_t words_of(const struct block *block)
{
    return block->bytes / 4;
}

/* On a lane that is entered and ordered. */
static void fill_edges(struct worker *worker, struct block *block, cudaStream_t stream,
                       unsigned value)
{
    size_t words = words_of(block), head = words < EDGE_WORDS ? words : EDGE_WORDS;

    if (!words)
        return;
    OK(hostcudaFill32(block->at, head, value, stream));
    if (words > 2 * EDGE_WORDS && chance(worker, 50))
        OK(hostcudaFill32(block->at + (words - head) * 4, head, value, stream));
    block->value = value;
    block->is_filled = true;
}

static void check_head(struct block *block, cudaStream_t stream)
{
    size_t words = words_of(block), head = words < EDGE_WORDS ? words : EDGE_WORDS;

    if (block->is_filled)
        OK(hostcudaCheckPattern(block->at, head, block->value, wrong_words, stream));
}

static size_t draw_bytes(struct worker *worker)
{
    unsigned kind = (unsigned)draw(worker, 100);
    size_t limit = kind < 40   ? 512
                   : kind < 75 ? (size_t)64 << 10
                   : kind < 94 ? (size_t)1 << 20
                               : largest;
    return 1 + draw(worker, limit < largest ? limit : largest);
}

static void free_block(struct worker *worker, struct block *block);

static struct block take_out(struct worker *worker, unsigned index)
{
    struct block block = worker->blocks[index];

    worker->blocks[index] = worker->blocks[--worker->block_count];
    worker->live_bytes -= block.bytes;
    return block;
}

static void put_in(struct worker *worker, const struct block *block)
{
    if (worker->block_count == BLOCKS_MAX)
        FAIL("too many blocks");
    worker->blocks[worker->block_count++] = *block;
    worker->live_bytes += block->bytes;
}

static enum block_kind draw_kind(struct worker *worker)
{
    unsigned number = (unsigned)draw(worker, 100);

    if (torch_alloc && worker->context->memory == PRIMARY_MEMORY && number < 50)
        return ORDERED;
    if (device_only)
        return number < 80 ? DEVICE : DRIVER;
    if (async_percent && chance(worker, async_percent))
        return ASYNC;
    if (managed_percent && chance(worker, managed_percent))
        return MANAGED;
    return number < 64   ? DEVICE
           : number < 80 ? DRIVER
           : number < 85 ? PITCH
           : number < 88 ? MANAGED
           : number < 92 ? PINNED
                         : ASYNC;
}

/* The runtime may tell the detector of the block too: twice does no harm. */
static void note_allocated(const void *at, size_t bytes)
{
    hostcuda_note_free(at);
    hostcuda_note_allocate(at, bytes);
}

static bool managed_is_served(void)
{
    return served && managed_percent;
}

static int call_allocate(struct worker *worker, struct block *block, struct lane *lane)
{
    size_t pitch, height = 1 + draw(worker, 8), width = block->bytes / height + 1;
    int answer = 0;

    switch (block->kind) {
    case DEVICE:
        UNSAFE_UNLESS_SERVED(worker, answer = cudaMalloc((void **)&block->at, block->bytes));
        break;
    case DRIVER:
        UNSAFE_UNLESS_SERVED(worker,
                             answer = (int)cuMemAlloc_v2((CUdeviceptr *)&block->at, block->bytes));
        break;
    case PITCH:
        UNSAFE_UNLESS_SERVED(worker,
                             answer = cudaMallocPitch((void **)&block->at, &pitch, width, height));
        block->bytes = answer ? 0 : pitch * height;
        break;
    case MANAGED:
        if (managed_is_served())
            answer = cudaMallocManaged((void **)&block->at, block->bytes, cudaMemAttachGlobal);
        else
            UNSAFE(worker, answer = cudaMallocManaged((void **)&block->at, block->bytes,
                                                      cudaMemAttachGlobal));
        break;
    case PINNED:
        UNSAFE(worker, answer = cudaHostAlloc((void **)&block->at, block->bytes, 0));
        break;
    case ASYNC:
        UNSAFE(worker, answer = cudaMallocAsync((void **)&block->at, block->bytes, lane->stream));
        block->lane = lane;
        break;
    case ORDERED:
        block->at = torch_alloc((ssize_t)block->bytes, 0, lane->stream);
        block->lane = lane;
        if (block->at)
            hostcuda_note_allocate_on(block->at, block->bytes, lane->stream);
        return block->at ? 0 : 2;
    }
    if (!answer && block->kind != ASYNC)
        note_allocated(block->at, block->bytes);
    return answer;
}

static void free_some(struct worker *worker)
{
    for (unsigned i = worker->block_count; i-- > 0;) {
        if (!chance(worker, 50))
            continue;
        struct block block = take_out(worker, i);
        free_block(worker, &block);
    }
}

static int range_attribute(const struct block *block, CUmem_range_attribute attribute)
{
    int first, last;
    CUdeviceptr end = (CUdeviceptr)block->at + block->bytes;

    OK(cuMemRangeGetAttribute(&first, 4, attribute, (CUdeviceptr)block->at, 1));
    OK(cuMemRangeGetAttribute(&last, 4, attribute, end - 1, 1));
    if (first != last)
        FAIL("a new block's ends have attribute %d of %d and %d", (int)attribute, first, last);
    return first;
}

/* A new block starts without; then some of it is advised. */
static void advise(struct worker *worker, const struct block *block)
{
    static const CUmem_advise advices[] = {CU_MEM_ADVISE_SET_READ_MOSTLY,
                                           CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                                           CU_MEM_ADVISE_SET_ACCESSED_BY};
    size_t begin = draw(worker, block->bytes), bytes = 1 + draw(worker, block->bytes - begin);

    if (range_attribute(block, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY) ||
        range_attribute(block, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION) != CU_DEVICE_INVALID ||
        range_attribute(block, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) != CU_DEVICE_INVALID)
        FAIL("a new block has another's advice");
    for (unsigned i = (unsigned)draw(worker, 4); i > 0; i--)
        UNSAFE(worker,
               OK(cuMemAdvise((CUdeviceptr)block->at + begin, bytes, advices[draw(worker, 3)],
                              chance(worker, 50) ? 0 : CU_DEVICE_CPU)));
}

static void allocate(struct worker *worker)
{
    struct block block = {.kind = draw_kind(worker), .memory = worker->context->memory};
    struct lane *lane = some_lane(worker);
    int answer;

    block.bytes = draw_bytes(worker);
    if (worker->block_count >= BLOCKS_MAX - GRAPH_BLOCKS * (GRAPHS_MAX + 1) ||
        worker->live_bytes + block.bytes > live_max) {
        free_some(worker);
        return;
    }
    if (!lane_enter(worker, lane))
        return;
    answer = call_allocate(worker, &block, lane);
    if (answer == 2) { /* out of memory, in both APIs */
        lane_leave(worker, lane);
        (void)cudaGetLastError();
        out_of_memories++;
        free_some(worker);
        return;
    }
    if (answer)
        FAIL("allocation of %zu bytes, kind %d: %d", block.bytes, block.kind, answer);
    if ((uintptr_t)block.at % 256)
        FAIL("a block at %p", (void *)block.at);
    if (is_advised && block.kind == MANAGED)
        advise(worker, &block);
    if (chance(worker, 85)) {
        if (words_of(&block) && !chance(worker, 5)) {
            fill_edges(worker, &block, lane->stream, (unsigned)draw(worker, UINT32_MAX));
        } else {
            OK(cudaMemsetAsync(block.at, 7, block.bytes < WHOLE_MAX ? block.bytes : WHOLE_MAX,
                               lane->stream));
            block.value = 0x07070707;
            block.is_filled = words_of(&block);
        }
        block.lane = lane;
    }
    lane_leave(worker, lane);
    put_in(worker, &block);
}

/* A capture elsewhere forbids this like any free (facts_h200.txt: free_async). */
static void free_on(struct worker *worker, const struct block *block, cudaStream_t stream)
{
    if (block->kind == ASYNC)
        UNSAFE(worker, OK(cudaFreeAsync(block->at, stream)));
    else
        UNSAFE_UNLESS_SERVED(worker, OK(cudaFreeAsync(block->at, stream)));
}

/* The block is not in the worker's list any more; work on it may be anywhere. */
static void free_block(struct worker *worker, struct block *block)
{
    int answer = 0;

    frees_done++;
    if (block->kind == ASYNC || (block->kind == DEVICE && chance(worker, 3)) ||
        (block->kind == ORDERED && chance(worker, 85))) {
        /* In the order of a stream. */
        struct lane *lane = some_lane(worker);
        bool freed = false;
        for (unsigned tries = 0; !freed; tries++) {
            if (tries == 2 * LANES_MAX) { /* a capture is in the way */
                if (block->kind == ASYNC)
                    put_in(worker, block);
                break;
            }
            if (lane_enter(worker, lane)) {
                if (order(worker, block, lane)) {
                    /* The detector learns of implied orders only by an operation. */
                    OK(cudaMemsetAsync(block->at, 0, 1, lane->stream));
                    if (block->kind == ORDERED) {
                        hostcuda_note_free_on(block->at, lane->stream);
                        torch_free(block->at, (ssize_t)block->bytes, 0, lane->stream);
                    } else {
                        free_on(worker, block, lane->stream);
                    }
                    freed = true;
                }
                lane_leave(worker, lane);
            }
            lane = some_lane(worker);
        }
        if (freed || block->kind == ASYNC)
            return;
    }
    drop_event(block);
    hostcuda_note_free(block->at);
    switch (block->kind) {
    case DEVICE:
    case PITCH:
    case ORDERED:
        UNSAFE_UNLESS_SERVED(worker, answer = cudaFree(block->at));
        break;
    case DRIVER:
        UNSAFE_UNLESS_SERVED(worker, answer = (int)cuMemFree_v2((CUdeviceptr)block->at));
        break;
    case MANAGED:
        if (managed_is_served())
            answer = cudaFree(block->at);
        else
            UNSAFE(worker, answer = cudaFree(block->at));
        break;
    case PINNED:
        UNSAFE(worker, answer = cudaFreeHost(block->at));
        break;
    case ASYNC:
        break;
    }
    if (answer)
        FAIL("free, kind %d: %d", block->kind, answer);
}

/* ---- what threads do ---- */

static void use(struct worker *worker)
{
    struct lane *lane = some_lane(worker);
    struct block *block, *other;
    unsigned what = (unsigned)draw(worker, 100);

    if (!worker->block_count || !lane_enter(worker, lane))
        return;
    block = &worker->blocks[draw(worker, worker->block_count)];
    other = &worker->blocks[draw(worker, worker->block_count)];
    if (!order(worker, block, lane))
        goto leave;
    if (what < 40) {
        check_head(block, lane->stream);
    } else if (what < 70) {
        fill_edges(worker, block, lane->stream, (unsigned)draw(worker, UINT32_MAX));
    } else if (what < 74) {
        size_t words = words_of(block) < 64 ? words_of(block) : 64;
        if (words)
            OK(hostcudaHold32(block->at, words, 5, 50 + draw(worker, 200), lane->stream));
        block->is_filled = false;
    } else if (what < 80) {
        OK(cudaMemsetAsync(block->at, 9, block->bytes < WHOLE_MAX ? block->bytes : WHOLE_MAX,
                           lane->stream));
        block->value = 0x09090909;
        block->is_filled = words_of(block);
    } else if (other != block && words_of(other) && words_of(block) && other->is_filled) {
        size_t words = words_of(other) < words_of(block) ? words_of(other) : words_of(block);
        words = words < EDGE_WORDS ? words : EDGE_WORDS;
        if (!order(worker, other, lane))
            goto leave;
        check_head(block, lane->stream);
        if (chance(worker, 50))
            OK(hostcudaCopy(block->at, other->at, words * 4, lane->stream));
        else
            OK(cudaMemcpyAsync(block->at, other->at, words * 4, cudaMemcpyDefault, lane->stream));
        /* Only this much is known of it now. */
        if (words == (words_of(block) < EDGE_WORDS ? words_of(block) : EDGE_WORDS))
            block->value = other->value;
        else
            block->is_filled = false;
    }
leave:
    lane_leave(worker, lane);
}

static void free_one(struct worker *worker)
{
    struct block block;

    if (!worker->block_count)
        return;
    block = take_out(worker, (unsigned)draw(worker, worker->block_count));
    if (words_of(&block) && chance(worker, 60)) { /* a kernel works on it while it is freed */
        struct lane *lane = some_lane(worker);
        if (lane_enter(worker, lane)) {
            if (order(worker, &block, lane)) {
                block.is_filled = false;
                if (chance(worker, 5))
                    OK(hostcudaHold32(block.at, 1, 3, 100 + draw(worker, 300), lane->stream));
                else
                    fill_edges(worker, &block, lane->stream, 1);
            }
            lane_leave(worker, lane);
        }
    }
    free_block(worker, &block);
}

static void read_back(struct worker *worker)
{
    struct lane *lane = &worker->lanes[0];
    struct block *block;
    unsigned word = 0;

    if (!worker->block_count)
        return;
    block = &worker->blocks[draw(worker, worker->block_count)];
    if (!block->is_filled || !lane_enter(worker, lane))
        return;
    if (order(worker, block, lane)) {
        UNSAFE(worker, OK(cudaMemcpy(&word, block->at, 4, cudaMemcpyDefault)));
        if (word != block->value)
            FAIL("block %p holds %#x instead of %#x", (void *)block->at, word, block->value);
        block->lane = NULL;
    }
    lane_leave(worker, lane);
}

static void synchronise(struct worker *worker)
{
    struct lane *lane = some_lane(worker);
    unsigned what = (unsigned)draw(worker, 100);
    int answer = 0;

    if (what < 10) {
        if (!gate_try(sync_gate(worker), CALLS))
            return;
        if (what < 5)
            UNSAFE(worker, OK(cudaDeviceSynchronize()));
        else
            UNSAFE(worker, OK((int)cuCtxSynchronize()));
        gate_leave(sync_gate(worker), CALLS);
        for (unsigned i = 0; i < LANES_MAX; i++)
            lane_is_done(worker, &worker->lanes[i]);
    } else if (what < 20) {
        read_back(worker);
    } else if (what < 90 && lane_enter(worker, lane)) {
        if (what < 40) {
            UNSAFE(worker, OK(cudaStreamSynchronize(lane->stream)));
        } else if (what < 60) {
            UNSAFE(worker, answer = cudaStreamQuery(lane->stream));
        } else {
            OK(cudaEventRecord(worker->order_event, lane->stream));
            if (what < 75)
                UNSAFE(worker, OK(cudaEventSynchronize(worker->order_event)));
            else
                UNSAFE(worker, answer = cudaEventQuery(worker->order_event));
        }
        lane_leave(worker, lane);
        if (answer && answer != cudaErrorNotReady)
            FAIL("query: %d", answer);
        if (!answer)
            lane_is_done(worker, lane);
    }
}

static void destroy_lane(struct worker *worker)
{
    struct lane *lane = &worker->lanes[2 + draw(worker, LANES_MAX - 2)];

    if (lane->kind == NO_LANE || lane->captures)
        return;
    if (chance(worker, 20)) {
        UNSAFE(worker, OK(cudaStreamSynchronize(lane->stream)));
        lane_is_done(worker, lane);
    }
    for (unsigned i = worker->block_count; i-- > 0;) {
        if (worker->blocks[i].lane != lane)
            continue;
        if (chance(worker, 50) && detach(worker, &worker->blocks[i]))
            continue;
        struct block block = take_out(worker, i);
        if (block.kind == ASYNC) {
            OK(cudaMemsetAsync(block.at, 0, 1, lane->stream));
            free_on(worker, &block, lane->stream);
        } else {
            if (words_of(&block))
                fill_edges(worker, &block, lane->stream, 2);
            free_block(worker, &block);
        }
    }
    for (unsigned i = 0; i < GRAPHS_MAX; i++)
        for (unsigned j = 0; j < worker->graphs[i].count; j++)
            if (worker->graphs[i].blocks[j].lane == lane)
                (void)detach(worker, &worker->graphs[i].blocks[j]);
    for (unsigned j = 0; worker->capture.origin && j < worker->capture.graph.count; j++)
        if (worker->capture.graph.blocks[j].lane == lane)
            (void)detach(worker, &worker->capture.graph.blocks[j]);
    OK(cudaStreamDestroy(lane->stream));
    lane->kind = NO_LANE;
}

/* ---- blocks change hands ---- */

static void post(struct worker *worker)
{
    struct block block;

    if (!worker->block_count)
        return;
    block = take_out(worker, (unsigned)draw(worker, worker->block_count));
    if (detach(worker, &block)) {
        pthread_mutex_lock(&mail.mutex);
        if (mail.count < MAIL_MAX) {
            mail.blocks[mail.count++] = block;
            block.at = NULL;
        }
        pthread_mutex_unlock(&mail.mutex);
    }
    if (block.at)
        put_in(worker, &block);
}

static void fetch(struct worker *worker)
{
    struct block block = {.at = NULL};
    unsigned index;

    if (worker->block_count >= BLOCKS_MAX - GRAPH_BLOCKS * (GRAPHS_MAX + 1))
        return;
    pthread_mutex_lock(&mail.mutex);
    if (mail.count) {
        index = (unsigned)draw(worker, mail.count);
        /* Stream-ordered frees stay in the memory's own context. */
        if (mail.blocks[index].memory == worker->context->memory ||
            mail.blocks[index].kind == DRIVER) {
            block = mail.blocks[index];
            mail.blocks[index] = mail.blocks[--mail.count];
        }
    }
    pthread_mutex_unlock(&mail.mutex);
    if (!block.at)
        return;
    if (block.memory != worker->context->memory || (block.kind != ASYNC && chance(worker, 40)))
        free_block(worker, &block); /* whatever its work is up to */
    else
        put_in(worker, &block);
}

/* ---- captures and graphs ---- */

static void begin_capture(struct worker *worker)
{
    struct capture *capture = &worker->capture;
    struct lane *origin = &worker->lanes[1 + draw(worker, LANES_MAX - 1)];

    if (capture->origin || origin->kind == NO_LANE)
        return;
    *capture = (struct capture){.mode = (enum cudaStreamCaptureMode)draw(worker, 3)};
    capture->holds_null = is_blocking(origin) || chance(worker, 30);
    if (capture->holds_null && !gate_try(&worker->context->null_gate, CAPTURES))
        return;
    if (!gate_try(sync_gate(worker), CAPTURES))
        goto leave_null;
    if (capture->mode == cudaStreamCaptureModeGlobal && !gate_try(&global_gate, CAPTURES))
        goto leave_sync;
    for (unsigned i = worker->block_count; i-- > 0 && capture->graph.count < GRAPH_BLOCKS;)
        if (worker->blocks[i].kind < ASYNC && words_of(&worker->blocks[i]) && chance(worker, 30))
            capture->graph.blocks[capture->graph.count++] = take_out(worker, i);
    for (unsigned i = 0; i < capture->graph.count; i++)
        if (capture->graph.blocks[i].lane == origin)
            (void)detach(worker, &capture->graph.blocks[i]);
    capture->steps = (unsigned)draw(worker, 60);
    capture->ends_by_destroying = origin->kind != OWN && chance(worker, 25);
    OK(cudaStreamBeginCapture(origin->stream, capture->mode));
    capture->origin = origin;
    origin->captures = true;
    return;
leave_sync:
    gate_leave(sync_gate(worker), CAPTURES);
leave_null:
    if (capture->holds_null)
        gate_leave(&worker->context->null_gate, CAPTURES);
}

static void fork_capture(struct worker *worker)
{
    struct capture *capture = &worker->capture;
    struct lane *fork = &worker->lanes[1 + draw(worker, LANES_MAX - 1)];

    if (capture->fork || capture->ends_by_destroying || fork->kind == NO_LANE || fork->captures ||
        (is_blocking(fork) && !capture->holds_null))
        return;
    for (unsigned i = 0; i < capture->graph.count; i++)
        if (capture->graph.blocks[i].lane == fork)
            (void)detach(worker, &capture->graph.blocks[i]);
    OK(cudaEventRecord(worker->fork_event, capture->origin->stream));
    OK(cudaStreamWaitEvent(fork->stream, worker->fork_event, 0));
    capture->fork = fork;
    fork->captures = true;
}

/* The driver refuses: the capture goes on. */
static void end_wrongly(struct worker *worker)
{
    cudaGraph_t graph = NULL;

    if (worker->capture.fork && cudaStreamEndCapture(worker->capture.fork->stream, &graph) !=
                                    cudaErrorStreamCaptureUnmatched)
        FAIL("a capture ended at a stream that only joined it");
}

static void capture_node(struct worker *worker)
{
    struct capture *capture = &worker->capture;
    unsigned index;
    struct lane *lane;

    if (!capture->graph.count)
        return;
    index = (unsigned)draw(worker, capture->graph.count);
    /* The last block is the fork's, the others the origin's: so they need no order between. */
    lane = capture->fork && index == capture->graph.count - 1 ? capture->fork : capture->origin;
    if (!capture->fork && index == capture->graph.count - 1 && !capture->ends_by_destroying)
        return;
    fill_edges(worker, &capture->graph.blocks[index], lane->stream,
               (unsigned)draw(worker, UINT32_MAX));
    check_head(&capture->graph.blocks[index], lane->stream);
}

static void put_graph_blocks_back(struct worker *worker, struct graph *graph)
{
    for (unsigned i = 0; i < graph->count; i++) {
        graph->blocks[i].is_filled &= graph->was_launched; /* else not what it was to be */
        put_in(worker, &graph->blocks[i]);
    }
    graph->count = 0;
}

static void finish_capture(struct worker *worker)
{
    struct capture *capture = &worker->capture;
    struct graph *slot = NULL;
    cudaGraph_t graph = NULL;

    for (unsigned i = 0; i < GRAPHS_MAX && !slot; i++)
        slot = worker->graphs[i].exec ? NULL : &worker->graphs[i];
    if (capture->ends_by_destroying) {
        for (unsigned i = worker->block_count; i-- > 0;) {
            if (worker->blocks[i].lane != capture->origin || worker->blocks[i].kind == ASYNC)
                continue;
            struct block block = take_out(worker, i);
            if (block.kind == DEVICE || block.kind == ORDERED)
                block.kind = PITCH; /* not stream-ordered */
            free_block(worker, &block);
        }
        for (unsigned i = 0; i < worker->block_count; i++)
            if (worker->blocks[i].lane == capture->origin) /* only what is stream-ordered */
                capture->ends_by_destroying = false;
        for (unsigned i = 0; i < GRAPHS_MAX; i++)
            for (unsigned j = 0; j < worker->graphs[i].count; j++)
                if (worker->graphs[i].blocks[j].lane == capture->origin)
                    capture->ends_by_destroying = false;
    }
    if (capture->ends_by_destroying) {
        OK(cudaStreamDestroy(capture->origin->stream));
        capture->origin->kind = NO_LANE;
        put_graph_blocks_back(worker, &capture->graph);
    } else {
        int answer;
        if (capture->fork) {
            OK(cudaEventRecord(worker->join_event, capture->fork->stream));
            OK(cudaStreamWaitEvent(capture->origin->stream, worker->join_event, 0));
        }
        answer = cudaStreamEndCapture(capture->origin->stream, &graph);
        if (answer)
            FAIL("a capture was spoilt: %d", answer);
        if (slot && capture->graph.count && chance(worker, 80)) {
            *slot = capture->graph;
            OK(cudaGraphInstantiate(&slot->exec, graph, 0));
        } else {
            put_graph_blocks_back(worker, &capture->graph);
        }
        OK(cudaGraphDestroy(graph));
    }
    capture->origin->captures = false;
    if (capture->fork)
        capture->fork->captures = false;
    capture->origin = NULL;
    gate_leave(sync_gate(worker), CAPTURES);
    if (capture->mode == cudaStreamCaptureModeGlobal)
        gate_leave(&global_gate, CAPTURES);
    if (capture->holds_null)
        gate_leave(&worker->context->null_gate, CAPTURES);
    captures_done++;
}

static void launch_graph(struct worker *worker)
{
    struct graph *graph = &worker->graphs[draw(worker, GRAPHS_MAX)];
    struct lane *lane = some_lane(worker);
    bool ordered = true;

    if (!graph->exec || !lane_enter(worker, lane))
        return;
    for (unsigned i = 0; i < graph->count && ordered; i++)
        ordered = order(worker, &graph->blocks[i], lane);
    if (ordered)
        OK(cudaGraphLaunch(graph->exec, lane->stream));
    lane_leave(worker, lane);
    graph->was_launched |= ordered;
    if (ordered && chance(worker, 30)) {
        OK(cudaGraphExecDestroy(graph->exec)); /* the launch goes on */
        graph->exec = NULL;
        put_graph_blocks_back(worker, graph);
    }
}

/* ---- rare things ---- */

static void free_wrongly(struct worker *worker)
{
    struct block block;
    int on_stack, answer;

    if (chance(worker, 30)) {
        UNSAFE(worker, answer = (int)cuMemFree_v2((CUdeviceptr)&on_stack));
    } else if (worker->block_count) {
        unsigned index = (unsigned)draw(worker, worker->block_count);
        block = worker->blocks[index];
        if (block.bytes < 1024 || block.kind == PINNED)
            return;
        if (one_thread && block.kind == DRIVER) { /* nobody else can be given it in between */
            block = take_out(worker, index);
            free_block(worker, &block);
            UNSAFE(worker, answer = (int)cuMemFree_v2((CUdeviceptr)block.at));
        } else {
            UNSAFE(worker, answer = (int)cuMemFree_v2((CUdeviceptr)block.at + 512));
        }
    } else {
        return;
    }
    if (answer != CUDA_ERROR_INVALID_VALUE)
        FAIL("a wrong free: %d", answer);
}

static void ask(struct worker *worker)
{
    size_t free_bytes, total_bytes, bytes;
    CUdeviceptr base;
    const struct block *block;

    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (free_bytes > total_bytes)
        FAIL("%zu bytes of %zu are free", free_bytes, total_bytes);
    if (!worker->block_count)
        return;
    block = &worker->blocks[draw(worker, worker->block_count)];
    if (block->kind != DRIVER || is_unranged)
        return;
    OK(cuMemGetAddressRange_v2(&base, &bytes, (CUdeviceptr)block->at + block->bytes / 2));
    if (base != (CUdeviceptr)block->at || bytes != block->bytes)
        FAIL("address range of %zu bytes instead of %zu", bytes, block->bytes);
}

/* A kernel that ends when the host, after its next allocation, says so. */
static void wait_for_host(struct worker *worker)
{
    struct lane *lane = some_lane(worker);
    void *flag_memory, *more;
    _Atomic unsigned *flag;

    if (!wants_flags || lane->kind != NON_BLOCKING || worker->capture.origin ||
        !lane_enter(worker, lane))
        return;
    UNSAFE(worker, OK(cudaHostAlloc(&flag_memory, 4, 0)));
    flag = flag_memory;
    *flag = 0;
    OK(hostcudaSpinUntil(flag_memory, lane->stream));
    UNSAFE(worker, OK(cudaMalloc(&more, 1 + draw(worker, 4 << 20))));
    *flag = 1;
    UNSAFE(worker, OK(cudaFree(more)));
    UNSAFE(worker, OK(cudaFreeHost(flag_memory)));
    lane_leave(worker, lane);
}

static void step(struct worker *worker)
{
    unsigned what = (unsigned)draw(worker, 1000);

    if (worker->capture.origin) {
        if (worker->capture.steps-- == 0) {
            finish_capture(worker);
            return;
        }
        if (what % 4 == 0) {
            if (chance(worker, 20))
                fork_capture(worker);
            else if (chance(worker, 10))
                end_wrongly(worker);
            else
                capture_node(worker);
            return;
        }
    }
    if (what < 300)
        allocate(worker);
    else if (what < 580)
        use(worker);
    else if (what < 850)
        free_one(worker);
    else if (what < 870)
        synchronise(worker);
    else if (what < 890)
        create_lane(worker);
    else if (what < 900)
        destroy_lane(worker);
    else if (what < 930)
        post(worker);
    else if (what < 960)
        fetch(worker);
    else if (what < 970)
        begin_capture(worker);
    else if (what < 985)
        launch_graph(worker);
    else if (what < 990)
        free_wrongly(worker);
    else if (what < 999)
        ask(worker);
    else
        wait_for_host(worker);
}

/* What is left over is freed, or outlives the thread. */
static void leave(struct worker *worker)
{
    if (worker->capture.origin)
        finish_capture(worker);
    for (unsigned i = 0; i < GRAPHS_MAX; i++) {
        struct graph *graph = &worker->graphs[i];
        if (!graph->exec)
            continue;
        OK(cudaGraphExecDestroy(graph->exec));
        put_graph_blocks_back(worker, graph);
    }
    for (unsigned rounds = 0; worker->block_count && rounds < BLOCKS_MAX; rounds++) {
        if (chance(worker, 50)) {
            post(worker);
        } else {
            struct block block = take_out(worker, 0);
            free_block(worker, &block);
        }
    }
    while (worker->block_count) {
        struct block block = take_out(worker, 0);
        free_block(worker, &block);
    }
    for (unsigned i = 2; i < LANES_MAX; i++)
        if (worker->lanes[i].kind != NO_LANE)
            OK(cudaStreamDestroy(worker->lanes[i].stream));
    OK(cudaEventDestroy(worker->order_event));
    OK(cudaEventDestroy(worker->fork_event));
    OK(cudaEventDestroy(worker->join_event));
}

static void *work(void *argument)
{
    struct worker *worker = argument;

    OK(cuCtxSetCurrent(worker->context->handle));
    worker->lanes[0] = (struct lane){.kind = LEGACY};
    worker->lanes[1] = (struct lane){.kind = OWN, .stream = cudaStreamPerThread};
    OK(cudaEventCreateWithFlags(&worker->order_event, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&worker->fork_event, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&worker->join_event, cudaEventDisableTiming));
    for (unsigned i = 0; i < 3; i++)
        create_lane(worker);
    for (unsigned long long i = 0; i < worker->operations; i++)
        step(worker);
    leave(worker);
    return NULL;
}

/* ---- contexts ---- */

static void open_contexts(void)
{
    CUdevResource all, part;
    CUdevResourceDesc desc;
    unsigned count = 1;
    int version = 0;

    OK(cuDevicePrimaryCtxRetain(&contexts[PRIMARY].handle, 0));
    OK(cuCtxCreate_v2(&contexts[SECOND].handle, 0, 0));
    contexts[SECOND].memory = SECOND_MEMORY;
    OK(cuDriverGetVersion(&version));
    has_greens = version >= 12040;
    has_green_streams = version >= 12050;
    if (has_greens) {
        OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
        OK(cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, 16));
        OK(cuDevResourceGenerateDesc(&desc, &part, 1));
        OK(cuGreenCtxCreate(&contexts[GREEN].green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        OK(cuCtxFromGreenCtx(&contexts[GREEN].handle, contexts[GREEN].green));
    }
    OK(cuCtxSetCurrent(contexts[PRIMARY].handle));
}

static void free_mail(enum memory memory)
{
    unsigned kept = 0;

    OK(cuCtxSetCurrent(contexts[memory == SECOND_MEMORY ? SECOND : PRIMARY].handle));
    for (unsigned i = 0; i < mail.count; i++) {
        struct block *block = &mail.blocks[i];
        if (block->memory != memory) {
            mail.blocks[kept++] = *block;
            continue;
        }
        if (block->kind == ASYNC && block->event)
            OK(cudaStreamWaitEvent(NULL, block->event, 0));
        drop_event(block);
        if (block->kind == ASYNC) {
            OK(cudaMemsetAsync(block->at, 0, 1, NULL));
            OK(cudaFreeAsync(block->at, NULL));
            continue;
        }
        hostcuda_note_free(block->at);
        OK(block->kind == PINNED ? cudaFreeHost(block->at) : cudaFree(block->at));
    }
    mail.count = kept;
    OK(cuCtxSetCurrent(contexts[PRIMARY].handle));
}

/* Without threads: their work may still run. */
static void close_context(enum where where)
{
    struct context *context = &contexts[where];

    if (!context->handle)
        return;
    if (where == SECOND)
        free_mail(SECOND_MEMORY);
    if (context->green)
        OK(cuGreenCtxDestroy(context->green));
    else if (where == SECOND)
        OK(cuCtxDestroy_v2(context->handle));
    context->handle = NULL;
    context->green = NULL;
}

/* ---- whole program ---- */

/* A gate that stays shut after the last capture is safe, but nothing is reused any more. */
static void expect_fences(void)
{
    unsigned long long before = hostcuda_call_count("cuCtxRecordEvent");
    void *blocks[300];

    for (unsigned i = 0; i < 300; i++)
        OK(cudaMalloc(&blocks[i], 1000));
    for (unsigned i = 0; i < 300; i++)
        OK(cudaFree(blocks[i]));
    if (hostcuda_call_count("cuCtxRecordEvent") == before)
        FAIL("no fence is recorded any more");
}

static _Atomic bool is_over;

/* With HOSTCUDA_SCHEDULE=stepped nothing else moves the device while the host polls. */
static void *step_device(void *unused)
{
    struct worker stepper = {.random = seed * 77 + 5};

    while (!is_over) {
        for (unsigned i = (unsigned)draw(&stepper, 32); i > 0 && hostcuda_step(NULL); i--)
            ;
        usleep((unsigned)draw(&stepper, 200));
    }
    return unused;
}

static void run_round(unsigned threads, unsigned long long operations, struct worker *dice)
{
    static struct worker workers[THREADS_MAX];

    for (unsigned i = 0; i < threads; i++) {
        unsigned where = (unsigned)draw(dice, 100);
        workers[i] = (struct worker){.random = draw(dice, UINT64_MAX) | 1,
                                     .operations = operations / threads};
        workers[i].context = &contexts[where < 60                  ? PRIMARY
                                       : where < 80 || !has_greens ? SECOND
                                                                   : GREEN];
        OK(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
    }
    for (unsigned i = 0; i < threads; i++)
        OK(pthread_join(workers[i].thread, NULL));
}

/* Without the library there are none. */
static void find_torch(void)
{
    void *found[] = {dlsym(RTLD_DEFAULT, "rmmshim_torch_alloc"),
                     dlsym(RTLD_DEFAULT, "rmmshim_torch_free")};

    memcpy(&torch_alloc, &found[0], sizeof(found[0]));
    memcpy(&torch_free, &found[1], sizeof(found[1]));
}

static unsigned long long option(char **arguments, const char *name, unsigned long long missing)
{
    size_t length = strlen(name);

    for (; *arguments; arguments++) {
        if (strncmp(*arguments, name, length))
            continue;
        if ((*arguments)[length] == '=')
            return strtoull(*arguments + length + 1, NULL, 10);
        if (!(*arguments)[length])
            return 1;
    }
    return missing;
}

int main(int argc, char **argv)
{
    struct worker dice;
    unsigned threads, rounds;
    unsigned long long operations;
    const char *schedule = getenv("HOSTCUDA_SCHEDULE");
    pthread_t stepper;
    bool is_stepped = schedule && !strcmp(schedule, "stepped");

    if (argc < 3) {
        fprintf(stderr, "usage: random_program SEED OPERATIONS [option...]\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    operations = strtoull(argv[2], NULL, 10);
    dice = (struct worker){.random = (seed + 1) * 0x9e3779b97f4a7c15};
    threads = 1 + (unsigned)(chance(&dice, 50) ? draw(&dice, 4) : draw(&dice, THREADS_MAX));
    threads = (unsigned)option(argv + 3, "threads", threads);
    rounds = 1 + (unsigned)draw(&dice, 3);
    live_max = ((size_t)1 << 20) * option(argv + 3, "live", 64);
    largest = option(argv + 3, "largest", largest);
    served = option(argv + 3, "served", 0);
    wants_flags = option(argv + 3, "flags", 0);
    device_only = option(argv + 3, "devicebound", 0);
    is_unranged = option(argv + 3, "unranged", 0);
    async_percent = (unsigned)option(argv + 3, "async", 0);
    managed_percent = (unsigned)option(argv + 3, "managed", 0);
    is_advised = option(argv + 3, "advised", 0);
    one_thread = threads == 1;
    if (option(argv + 3, "torch", 0))
        find_torch();
    OK(cuInit(0));
    for (unsigned i = 0; i < WHERES; i++)
        pthread_mutex_init(&contexts[i].null_gate.mutex, NULL);
    for (unsigned i = 0; i < MEMORIES; i++)
        pthread_mutex_init(&sync_gates[i].mutex, NULL);
    pthread_mutex_init(&global_gate.mutex, NULL);
    if (is_stepped)
        OK(pthread_create(&stepper, NULL, step_device, NULL));
    open_contexts();
    OK(cudaHostAlloc((void **)&wrong_words, 4, cudaHostAllocPortable));
    *wrong_words = 0;
    for (unsigned i = 0; i < rounds; i++) {
        run_round(threads, operations / rounds, &dice);
        if (i + 1 < rounds && chance(&dice, 60)) {
            close_context(GREEN);
            close_context(SECOND);
            open_contexts();
        }
    }
    free_mail(PRIMARY_MEMORY);
    free_mail(SECOND_MEMORY);
    OK(cuCtxSetCurrent(contexts[SECOND].handle));
    OK(cudaDeviceSynchronize());
    OK(cuCtxSetCurrent(contexts[PRIMARY].handle));
    OK(cudaDeviceSynchronize());
    if (*wrong_words)
        FAIL("%u words were overwritten", *wrong_words);
    OK(cudaFreeHost(wrong_words));
    if (option(argv + 3, "fences", 0))
        expect_fences();
    close_context(GREEN);
    close_context(SECOND);
    is_over = true;
    if (is_stepped)
        OK(pthread_join(stepper, NULL));
    if (hostcuda_race_count())
        fprintf(stderr, "random_program: seed %llu: %llu races\n", seed, hostcuda_race_count());
    if (getenv("RANDOM_PROGRAM_VERBOSE"))
        fprintf(stderr,
                "seed %llu: %u threads, %u rounds, %llu frees, %llu captures, %llu times out of "
                "memory\n",
                seed, threads, rounds, (unsigned long long)frees_done,
                (unsigned long long)captures_done, (unsigned long long)out_of_memories);
    return 0;
}
