/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of a random program, and the graphs that come of them. */
#include "program.h"

void begin_capture(struct worker *worker)
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

void fork_capture(struct worker *worker)
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
void end_wrongly(struct worker *worker)
{
    cudaGraph_t graph = NULL;

    if (worker->capture.fork && cudaStreamEndCapture(worker->capture.fork->stream, &graph) !=
                                    cudaErrorStreamCaptureUnmatched)
        FAIL("a capture ended at a stream that only joined it");
}

void capture_node(struct worker *worker)
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

void put_graph_blocks_back(struct worker *worker, struct graph *graph)
{
    for (unsigned i = 0; i < graph->count; i++) {
        graph->blocks[i].is_filled &= graph->was_launched; /* else not what it was to be */
        put_in(worker, &graph->blocks[i]);
    }
    graph->count = 0;
}

void finish_capture(struct worker *worker)
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

void launch_graph(struct worker *worker)
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
