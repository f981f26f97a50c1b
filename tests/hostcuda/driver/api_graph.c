/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: graphs. */
#include "driver/call.h"
#include "driver/capture_session.h"
#include "driver/device.h"
#include "driver/graph.h"
#include "driver/handle.h"
#include "driver/kernel.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/race.h"

#include <stdlib.h>
#include <string.h>

/* A graph ready to be launched: the work in an order that respects all of the graph's. */
struct hc_exec {
    struct hc_graph_memory *memory;
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
    exec->memory = hc_graph_memory_ref(graph->memory);
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
    hc_graph_memory_unref(((struct hc_exec *)exec)->memory);
    free(exec); /* a launch has its own copy of the work */
    return CUDA_SUCCESS;
}

/* What a node of a launch does to the graph's memory. */
static void account(const struct hc_stream *stream, const struct hc_work *work)
{
    struct hc_alloc *alloc;
    memcpy(&alloc, work->args, sizeof(alloc));
    if (work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        hc_race_stream_allocates(stream, alloc->base, alloc->size);
    } else if (work->type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
        hc_race_stream_frees(stream, alloc->base);
        alloc->is_freed = true;
    }
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(stream_handle, &stream);
    if (!result && !hc_handle_is(handle, HC_HANDLE_EXEC))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    const struct hc_exec *exec = (const struct hc_exec *)handle;
    hc_graph_memory_begin(exec->memory);
    for (unsigned i = 0; !result && i < exec->count; i++) {
        result = hc_stream_submit(stream, &exec->work[i], NULL);
        if (!result && !stream->capture)
            account(stream, &exec->work[i]);
    }
    return result;
}

HC_PAIR(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream stream), launch(exec, HC_STREAM(stream)));

static CUresult upload(CUgraphExec exec)
{
    HC_LOCKED();
    return hc_handle_is(exec, HC_HANDLE_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

HC_PAIR(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream stream), ((void)stream, upload(exec)));

/* ---- nodes by hand ---- */

static CUresult check_node(const CUgraphNode *out, CUgraph handle, const CUgraphNode *earlier,
                           size_t count)
{
    if (!out || !hc_handle_is(handle, HC_HANDLE_GRAPH) || (count && !earlier))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!hc_handle_is(earlier[i], HC_HANDLE_NODE))
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult add_checked(CUgraphNode *out, CUgraph handle, const CUgraphNode *earlier,
                            size_t count, CUgraphNodeType type, const struct hc_work *work)
{
    struct hc_node *node = hc_graph_add((struct hc_graph *)handle, type, work,
                                        (struct hc_node *const *)earlier, (unsigned)count);
    *out = (CUgraphNode)node;
    return node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_node(CUgraphNode *out, CUgraph handle, const CUgraphNode *earlier, size_t count,
                         CUgraphNodeType type, const struct hc_work *work)
{
    HC_LOCKED();
    CUresult result = check_node(out, handle, earlier, count);
    return result ? result : add_checked(out, handle, earlier, count, type, work);
}

/* A node about an allocation of the graph's, which its args hold. */
static CUresult add_memory_node(CUgraphNode *out, CUgraph handle, const CUgraphNode *earlier,
                                size_t count, CUgraphNodeType type, struct hc_alloc *alloc)
{
    struct hc_work work = {.type = type};
    memcpy(work.args, &alloc, sizeof(alloc));
    return add_checked(out, handle, earlier, count, type, &work);
}

static CUresult add_allocation(CUgraphNode *node, CUgraph graph, const CUgraphNode *earlier,
                               size_t count, CUDA_MEM_ALLOC_NODE_PARAMS_v2 *params)
{
    HC_LOCKED();
    struct hc_alloc *alloc;
    CUresult result = check_node(node, graph, earlier, count);
    if (result || !params || !params->bytesize ||
        params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !hc_device_at(params->poolProps.location.id))
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    result = hc_graph_allocate((struct hc_graph *)graph, params->poolProps.location.id,
                               params->bytesize, &alloc);
    if (result)
        return result;
    params->dptr = alloc->base;
    return add_memory_node(node, graph, earlier, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC, alloc);
}

HC_API CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *earlier,
                                       size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    HC_ENTER(cuGraphAddMemAllocNode);
    return add_allocation(node, graph, earlier, count, (CUDA_MEM_ALLOC_NODE_PARAMS_v2 *)params);
}

/* Of the types of nodes, allocations alone. */
static CUresult add_any_node(CUgraphNode *node, CUgraph graph, const CUgraphNode *earlier,
                             size_t count, CUgraphNodeParams *params)
{
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    return params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC
               ? add_allocation(node, graph, earlier, count, &params->alloc)
               : CUDA_ERROR_NOT_SUPPORTED;
}

HC_API CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *earlier,
                               size_t count, CUgraphNodeParams *params)
{
    HC_ENTER(cuGraphAddNode);
    return add_any_node(node, graph, earlier, count, params);
}

HC_API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *earlier,
                                  const CUgraphEdgeData *edges, size_t count,
                                  CUgraphNodeParams *params)
{
    HC_ENTER(cuGraphAddNode_v2);
    (void)edges;
    return add_any_node(node, graph, earlier, count, params);
}

#if CUDA_VERSION < 13040
CUresult cuGraphAddNode_v3(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
                           size_t, CUgraphNodeParams *);
#endif

HC_API CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *earlier,
                                  const CUgraphEdgeData *edges, size_t count,
                                  CUgraphNodeParams *params)
{
    HC_ENTER(cuGraphAddNode_v3);
    (void)edges;
    return add_any_node(node, graph, earlier, count, params);
}

HC_API CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *earlier,
                                      size_t count, CUdeviceptr dptr)
{
    HC_ENTER(cuGraphAddMemFreeNode);
    HC_LOCKED();
    struct hc_alloc *alloc = hc_memory_find_base(dptr);
    CUresult result = check_node(node, graph, earlier, count);
    if (result || !alloc || !alloc->graph)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    return add_memory_node(node, graph, earlier, count, CU_GRAPH_NODE_TYPE_MEM_FREE, alloc);
}

HC_API CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *earlier,
                                    size_t count)
{
    HC_ENTER(cuGraphAddEmptyNode);
    return add_node(node, graph, earlier, count, CU_GRAPH_NODE_TYPE_EMPTY, NULL);
}

HC_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph,
                                        const CUgraphNode *earlier, size_t count,
                                        const CUDA_KERNEL_NODE_PARAMS *params)
{
    HC_ENTER(cuGraphAddKernelNode_v2);
    struct hc_work work;
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = hc_kernel_work(params->func ? (void *)params->func : (void *)params->kern,
                                     params->kernelParams, params->extra, &work);
    return result ? result
                  : add_node(node, graph, earlier, count, CU_GRAPH_NODE_TYPE_KERNEL, &work);
}

HC_API CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    HC_ENTER(cuGraphNodeGetType);
    HC_LOCKED();
    if (!type || !hc_handle_is(node, HC_HANDLE_NODE))
        return CUDA_ERROR_INVALID_VALUE;
    *type = ((const struct hc_node *)node)->type;
    return CUDA_SUCCESS;
}
