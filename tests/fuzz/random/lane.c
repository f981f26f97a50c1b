/* SPDX-License-Identifier: Apache-2.0 */
/* What keeps a random program right: gates, lanes, and the order between them. */
#include "program.h"

bool gate_try(struct gate *gate, int group)
{
    bool entered;

    pthread_mutex_lock(&gate->mutex);
    entered = !gate->inside[!group];
    gate->inside[group] += entered;
    pthread_mutex_unlock(&gate->mutex);
    return entered;
}

void gate_leave(struct gate *gate, int group)
{
    pthread_mutex_lock(&gate->mutex);
    gate->inside[group]--;
    pthread_mutex_unlock(&gate->mutex);
}

struct unsafe unsafe_begin(struct worker *worker)
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

void unsafe_end(struct unsafe *unsafe)
{
    if (unsafe->is_inside)
        gate_leave(&global_gate, CALLS);
    if (unsafe->is_relaxed)
        OK(cudaThreadExchangeStreamCaptureMode(&unsafe->mode));
}

bool is_blocking(const struct lane *lane)
{
    return lane->kind == OWN || lane->kind == BLOCKING;
}

/* Before any call with the lane's stream. */
bool lane_enter(struct worker *worker, struct lane *lane)
{
    if (lane->kind == NO_LANE || lane->captures)
        return false;
    return lane->kind != LEGACY || gate_try(&worker->context->null_gate, CALLS);
}

void lane_leave(struct worker *worker, struct lane *lane)
{
    if (lane->kind == LEGACY)
        gate_leave(&worker->context->null_gate, CALLS);
}

struct lane *some_lane(struct worker *worker)
{
    return &worker->lanes[draw(worker, LANES_MAX)];
}

void drop_event(struct block *block)
{
    if (block->event)
        OK(cudaEventDestroy(block->event));
    block->event = NULL;
}

/* Orders the block's next use on the lane, which is entered. */
bool order(struct worker *worker, struct block *block, struct lane *lane)
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
bool detach(struct worker *worker, struct block *block)
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
void lane_is_done(struct worker *worker, const struct lane *lane)
{
    for (unsigned i = 0; i < worker->block_count; i++)
        if (worker->blocks[i].lane == lane)
            worker->blocks[i].lane = NULL;
}

void create_lane(struct worker *worker)
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

void destroy_lane(struct worker *worker)
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
