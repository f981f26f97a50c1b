/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: stream-ordered memory. */
#include "driver/call.h"
#include "driver/capture.h"
#include "driver/capture_session.h"
#include "driver/context.h"
#include "driver/graph.h"
#include "driver/lock.h"
#include "driver/pool.h"
#include "driver/race.h"
#include "driver/stream.h"

#include <string.h>

/* A node of the graph; its args hold the allocation. */
static CUresult add_node(struct hc_stream *stream, CUgraphNodeType type, struct hc_alloc *alloc)
{
    struct hc_work work = {.type = type};
    memcpy(work.args, &alloc, sizeof(alloc));
    return hc_capture_add_node(stream, type, &work);
}

static CUresult allocate_in_graph(struct hc_stream *stream, size_t bytes, CUdeviceptr *out)
{
    struct hc_session *session = stream->capture->session;
    struct hc_alloc *alloc;
    if (session->is_spoilt)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    CUresult result = hc_graph_allocate(session->graph, stream->ctx->device, bytes, &alloc);
    if (!result)
        result = add_node(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, alloc);
    if (!result)
        *out = alloc->base;
    return result;
}

/* For memory in the order of a stream that does not capture itself, while another does. */
static CUresult check_captures(const struct hc_stream *stream)
{
    CUresult result = hc_capture_check_implicit(stream, false);
    return result ? result : hc_capture_check_unsafe();
}

/* pool_handle NULL: the current pool of the stream's device. */
static CUresult allocate(CUdeviceptr *out, size_t bytes, const CUmemoryPool *pool_handle,
                         CUstream handle)
{
    HC_LOCKED();
    struct hc_stream *stream;
    struct hc_pool *pool;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && pool_handle)
        result = hc_pool_of(*pool_handle, &pool);
    if (result)
        return result;
    if (!pool_handle)
        pool = hc_pool_current(stream->ctx->device);
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return bytes ? allocate_in_graph(stream, bytes, out) : CUDA_ERROR_INVALID_VALUE;
    if (!bytes) {
        *out = 0;
        return CUDA_SUCCESS;
    }
    result = check_captures(stream);
    if (result)
        return result;
    struct hc_alloc *alloc;
    result = hc_pool_take(pool, bytes, &alloc);
    if (result)
        return result;
    result = hc_stream_enqueue(stream, NULL, NULL);
    if (result) {
        hc_memory_release(alloc, HC_RACE_FREE);
        return result;
    }
    hc_race_stream_allocates(stream, alloc->base, alloc->size);
    *out = alloc->base;
    return CUDA_SUCCESS;
}

HC_PAIR(cuMemAllocAsync, _ptsz, (CUdeviceptr * dptr, size_t bytes, CUstream stream),
        allocate(dptr, bytes, NULL, HC_STREAM(stream)));
HC_PAIR(cuMemAllocFromPoolAsync, _ptsz,
        (CUdeviceptr * dptr, size_t bytes, CUmemoryPool pool, CUstream stream),
        allocate(dptr, bytes, &pool, HC_STREAM(stream)));

/* The range is gone when the stream comes to this place; a graph's stays with the graph. */
struct freed {
    struct hc_alloc *alloc;
    struct hc_stream *stream;
};

static void finish_free(void *args)
{
    struct freed freed;
    memcpy(&freed, args, sizeof(freed));
    if (freed.alloc->graph)
        return;
    if (freed.alloc->kind == HC_DEVICE)
        hc_memory_linger(freed.stream, freed.alloc);
    hc_memory_release(freed.alloc, HC_RACE_FREE_IN_ORDER);
}

static CUresult free_on(CUdeviceptr dptr, CUstream handle)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (result || !dptr)
        return result;
    struct hc_alloc *alloc = hc_memory_find_base(dptr);
    if (alloc && alloc->graph && stream->capture)
        return add_node(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, alloc);
    if (!alloc || alloc->is_freed)
        return CUDA_ERROR_INVALID_VALUE;
    if (alloc->kind == HC_MANAGED && !alloc->pool)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (alloc->kind != HC_DEVICE && alloc->kind != HC_ASYNC && alloc->kind != HC_MANAGED &&
        !alloc->pool)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture) /* only what the graph allocated */
        return CUDA_ERROR_INVALID_VALUE;
    result = check_captures(stream);
    if (result) /* the block is still there */
        return result;
    hc_memory_disown(alloc);
    alloc->is_freed = true;
    struct hc_work work = {.finish = finish_free};
    memcpy(work.args, &(struct freed){alloc, stream}, sizeof(struct freed));
    /* A place in the order for the detector first: the free itself may be done at once. */
    result = hc_stream_enqueue(stream, NULL, NULL);
    if (result)
        return result;
    hc_race_stream_frees(stream, dptr);
    return hc_stream_enqueue(stream, &work, NULL);
}

HC_PAIR(cuMemFreeAsync, _ptsz, (CUdeviceptr dptr, CUstream stream),
        free_on(dptr, HC_STREAM(stream)));
