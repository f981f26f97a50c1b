/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: graphs. */
#include "driver/call.h"
#include "driver/capture_session.h"
#include "driver/graph.h"
#include "driver/handle.h"
#include "driver/lock.h"

#include <stdlib.h>

/* A graph ready to be launched: the work in an order that respects all of the graph's. */
struct hc_exec {
    unsigned count;
    struct hc_work work[];
};

HC_API CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
    HC_ENTER(cuGraphCreate);
    HC_LOCKED();
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_graph *graph = hc_graph_new();
    *out = (CUgraph)graph;
    return graph ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

HC_API CUresult cuGraphDestroy(CUgraph graph)
{
    HC_ENTER(cuGraphDestroy);
    HC_LOCKED();
    if (!hc_handle_is(graph, HC_HANDLE_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    hc_graph_free((struct hc_graph *)graph);
    return CUDA_SUCCESS;
}

HC_API CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
    HC_ENTER(cuGraphGetNodes);
    HC_LOCKED();
    if (!count || !hc_handle_is(handle, HC_HANDLE_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    const struct hc_graph *graph = (const struct hc_graph *)handle;
    size_t at = 0;
    for (struct hc_node *node = graph->nodes; nodes && node && at < *count; node = node->next)
        nodes[at++] = (CUgraphNode)node;
    *count = nodes ? at : graph->node_count;
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle)
{
    HC_LOCKED();
    if (!out || !hc_handle_is(handle, HC_HANDLE_GRAPH))
        return CUDA_ERROR_INVALID_VALUE;
    const struct hc_graph *graph = (const struct hc_graph *)handle;
    struct hc_exec *exec = calloc(1, sizeof(*exec) + graph->node_count * sizeof(exec->work[0]));
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (const struct hc_node *node = graph->nodes; node; node = node->next)
        exec->work[exec->count++] = node->work;
    hc_handle_add(exec, HC_HANDLE_EXEC);
    *out = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

HC_API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                   char *log, size_t log_bytes)
{
    HC_ENTER(cuGraphInstantiate);
    (void)error_node, (void)log, (void)log_bytes;
    return instantiate(exec, graph);
}

HC_API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                      char *log, size_t log_bytes)
{
    HC_ENTER(cuGraphInstantiate_v2);
    (void)error_node, (void)log, (void)log_bytes;
    return instantiate(exec, graph);
}

HC_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                            unsigned long long flags)
{
    HC_ENTER(cuGraphInstantiateWithFlags);
    (void)flags;
    return instantiate(exec, graph);
}

static CUresult instantiate_with(CUgraphExec *exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph);
    params->result_out = result ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return result;
}

HC_PAIR(cuGraphInstantiateWithParams, _ptsz,
        (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params),
        instantiate_with(exec, graph, params));

HC_API CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    HC_ENTER(cuGraphExecDestroy);
    HC_LOCKED();
    if (!hc_handle_is(exec, HC_HANDLE_EXEC))
        return CUDA_ERROR_INVALID_VALUE;
    hc_handle_remove(exec);
    free(exec); /* a launch has its own copy of the work */
    return CUDA_SUCCESS;
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(stream_handle, &stream);
    if (!result && !hc_handle_is(handle, HC_HANDLE_EXEC))
        result = CUDA_ERROR_INVALID_VALUE;
    const struct hc_exec *exec = (const struct hc_exec *)handle;
    for (unsigned i = 0; !result && i < exec->count; i++)
        result = hc_stream_submit(stream, &exec->work[i], NULL);
    return result;
}

HC_PAIR(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), launch(exec, HC_STREAM(stream)));

static CUresult upload(CUgraphExec exec)
{
    HC_LOCKED();
    return hc_handle_is(exec, HC_HANDLE_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

HC_PAIR(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), ((void)stream, upload(exec)));
