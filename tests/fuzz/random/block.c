/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a random program: allocated, filled, checked, freed, and passed to another thread. */
#include "program.h"

size_t words_of(const struct block *block)
{
    return block->bytes / 4;
}

/* On a lane that is entered and ordered. */
void fill_edges(struct worker *worker, struct block *block, cudaStream_t stream, unsigned value)
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

void check_head(struct block *block, cudaStream_t stream)
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

struct block take_out(struct worker *worker, unsigned index)
{
    struct block block = worker->blocks[index];

    worker->blocks[index] = worker->blocks[--worker->block_count];
    worker->live_bytes -= block.bytes;
    return block;
}

void put_in(struct worker *worker, const struct block *block)
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

void allocate(struct worker *worker)
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
    ORACLE_NOTE("allocate %d %zu: %d", block.kind, block.bytes, answer);
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
void free_on(struct worker *worker, const struct block *block, cudaStream_t stream)
{
    if (block->kind == ASYNC)
        UNSAFE(worker, OK(cudaFreeAsync(block->at, stream)));
    else
        UNSAFE_UNLESS_SERVED(worker, OK(cudaFreeAsync(block->at, stream)));
}

/* The block is not in the worker's list any more; work on it may be anywhere. */
void free_block(struct worker *worker, struct block *block)
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
                    ORACLE_NOTE("free %d on a stream", block->kind);
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
    ORACLE_NOTE("free %d: %d", block->kind, answer);
    if (answer)
        FAIL("free, kind %d: %d", block->kind, answer);
}

void use(struct worker *worker)
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

void free_one(struct worker *worker)
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

void synchronise(struct worker *worker)
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
        if (!answer && !ORACLE_LISTENS)
            lane_is_done(worker, lane);
    }
}

void post(struct worker *worker)
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

void fetch(struct worker *worker)
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
