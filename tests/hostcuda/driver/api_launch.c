/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: kernels and host functions on a stream. */
#include "driver/call.h"
#include "driver/kernel.h"
#include "driver/lock.h"
#include "driver/stream.h"

#include <string.h>

static CUresult launch(CUfunction function, CUstream handle, void **params, void **extra,
                       size_t threads)
{
    HC_LOCKED();
    struct hc_stream *stream;
    struct hc_work work;
    CUresult result = hc_kernel_work(function, params, extra, &work);
    if (result == CUDA_ERROR_INVALID_HANDLE)
        return result;
    CUresult stream_result = hc_stream_of(handle, &stream);
    if (stream_result || result || !threads)
        return stream_result ? stream_result : CUDA_ERROR_INVALID_VALUE;
    return hc_stream_submit(stream, &work, NULL);
}

#define GRID                                                                                       \
    unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,           \
        unsigned int block_y, unsigned int block_z, unsigned int shared_bytes
#define THREADS ((void)shared_bytes, (size_t)grid_x * grid_y * grid_z * block_x * block_y * block_z)

HC_PAIR(cuLaunchKernel, _ptsz,
        (CUfunction function, GRID, CUstream stream, void **params, void **extra),
        launch(function, HC_STREAM(stream), params, extra, THREADS));
HC_PAIR(cuLaunchCooperativeKernel, _ptsz,
        (CUfunction function, GRID, CUstream stream, void **params),
        launch(function, HC_STREAM(stream), params, NULL, THREADS));

static size_t threads_of(const CUlaunchConfig *config)
{
    return (size_t)config->gridDimX * config->gridDimY * config->gridDimZ * config->blockDimX *
           config->blockDimY * config->blockDimZ;
}

HC_PAIR(cuLaunchKernelEx, _ptsz,
        (const CUlaunchConfig *config, CUfunction function, void **params, void **extra),
        !config ? CUDA_ERROR_INVALID_VALUE
                : launch(function, HC_STREAM(config->hStream), params, extra, threads_of(config)));

struct host_call {
    CUhostFn function;
    void *data;
};

static CUresult run_host_call(void *args)
{
    const struct host_call *call = args;
    hc_call_forbid(true);
    call->function(call->data);
    hc_call_forbid(false);
    return CUDA_SUCCESS;
}

static CUresult launch_host(CUstream handle, CUhostFn function, void *data)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && !function)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result)
        return result;
    struct host_call call = {function, data};
    struct hc_work work = {
        .type = CU_GRAPH_NODE_TYPE_HOST, .run = run_host_call, .tells_host = true};
    memcpy(work.args, &call, sizeof(call));
    return hc_stream_submit(stream, &work, NULL);
}

HC_PAIR(cuLaunchHostFunc, _ptsz, (CUstream stream, CUhostFn function, void *data),
        launch_host(HC_STREAM(stream), function, data));

struct callback {
    CUstreamCallback function;
    CUstream stream;
    void *data;
};

static CUresult run_callback(void *args)
{
    const struct callback *callback = args;
    hc_call_forbid(true);
    callback->function(callback->stream, CUDA_SUCCESS, callback->data);
    hc_call_forbid(false);
    return CUDA_SUCCESS;
}

static CUresult add_callback(CUstream handle, CUstreamCallback function, void *data, unsigned flags)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (!result && (!function || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result && stream->capture)
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result)
        return result;
    struct callback callback = {function, handle == CU_STREAM_LEGACY ? NULL : handle, data};
    struct hc_work work = {
        .type = CU_GRAPH_NODE_TYPE_HOST, .run = run_callback, .tells_host = true};
    memcpy(work.args, &callback, sizeof(callback));
    return hc_stream_submit(stream, &work, NULL);
}

HC_PAIR(cuStreamAddCallback, _ptsz,
        (CUstream stream, CUstreamCallback function, void *data, unsigned int flags),
        add_callback(HC_STREAM(stream), function, data, flags));
