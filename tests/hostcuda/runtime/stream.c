/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, captures and kernels. */
#include "hostcudart.h"
#include "runtime/runtime.h"

#include <pthread.h>

RT_API cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return RT_CALL(rt_driver.cuStreamCreate(stream, CU_STREAM_DEFAULT));
}

RT_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return RT_CALL(rt_driver.cuStreamCreate(stream, flags));
}

RT_API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags,
                                                int priority)
{
    return RT_CALL(rt_driver.cuStreamCreateWithPriority(stream, flags, priority));
}

RT_API cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return RT_CALL(rt_driver.cuStreamDestroy(stream));
}

RT_PAIR(cudaStreamQuery, _ptsz, (cudaStream_t stream),
        RT_CALL(rt_driver.cuStreamQuery[own](stream)));
RT_PAIR(cudaStreamSynchronize, _ptsz, (cudaStream_t stream),
        RT_CALL(rt_driver.cuStreamSynchronize[own](stream)));
RT_PAIR(cudaStreamWaitEvent, _ptsz, (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
        RT_CALL(rt_driver.cuStreamWaitEvent[own](stream, event, flags)));
/* The driver has it since 12.0. */
static CUresult get_id(int own, cudaStream_t stream, unsigned long long *id)
{
    return rt_driver.cuStreamGetId[own] ? rt_driver.cuStreamGetId[own](stream, id)
                                        : CUDA_ERROR_NOT_SUPPORTED;
}

RT_PAIR(cudaStreamGetId, _ptsz, (cudaStream_t stream, unsigned long long *id),
        RT_CALL(get_id(own, stream, id)));
RT_PAIR(cudaStreamIsCapturing, _ptsz, (cudaStream_t stream, enum cudaStreamCaptureStatus *status),
        RT_CALL(rt_driver.cuStreamIsCapturing[own](stream, (CUstreamCaptureStatus *)status)));
RT_PAIR(cudaStreamBeginCapture, _ptsz, (cudaStream_t stream, enum cudaStreamCaptureMode mode),
        RT_CALL(rt_driver.cuStreamBeginCapture[own](stream, (CUstreamCaptureMode)mode)));
RT_PAIR(cudaStreamEndCapture, _ptsz, (cudaStream_t stream, cudaGraph_t *graph),
        RT_CALL(rt_driver.cuStreamEndCapture[own](stream, graph)));
RT_PAIR(cudaLaunchHostFunc, _ptsz, (cudaStream_t stream, cudaHostFn_t function, void *data),
        RT_CALL(rt_driver.cuLaunchHostFunc[own](stream, function, data)));
RT_PAIR(cudaGraphLaunch, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream),
        RT_CALL(rt_driver.cuGraphLaunch[own](exec, stream)));
RT_PAIR(cudaEventRecord, _ptsz, (cudaEvent_t event, cudaStream_t stream),
        RT_CALL(rt_driver.cuEventRecord[own](event, stream)));

RT_API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    return RT_CALL(rt_driver.cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

RT_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph,
                                        unsigned long long flags)
{
    return RT_CALL(rt_driver.cuGraphInstantiateWithFlags(exec, graph, flags));
}

RT_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    return RT_CALL(rt_driver.cuGraphExecDestroy(exec));
}

RT_API cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return RT_CALL(rt_driver.cuGraphDestroy(graph));
}

RT_API cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return RT_CALL(rt_driver.cuEventCreate(event, CU_EVENT_DEFAULT));
}

RT_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    return RT_CALL(rt_driver.cuEventCreate(event, flags));
}

RT_API cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return RT_CALL(rt_driver.cuEventDestroy(event));
}

RT_API cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return RT_CALL(rt_driver.cuEventQuery(event));
}

RT_API cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return RT_CALL(rt_driver.cuEventSynchronize(event));
}

RT_API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t first, cudaEvent_t last)
{
    return RT_CALL(rt_driver.cuEventElapsedTime(milliseconds, first, last));
}

/* A module of this device belongs to no context, so one serves the whole process. */
static CUresult find_kernel(const char *name, CUfunction *function)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static CUmodule module;
    pthread_mutex_lock(&mutex);
    CUresult result = module ? CUDA_SUCCESS : rt_driver.cuModuleLoadData(&module, "hostcuda");
    pthread_mutex_unlock(&mutex);
    return result ? result : rt_driver.cuModuleGetFunction(function, module, name);
}

static CUresult launch(int own, const char *kernel, cudaStream_t stream, void **args)
{
    CUfunction function;
    CUresult result = find_kernel(kernel, &function);
    if (result)
        return result;
    return rt_driver.cuLaunchKernel[own](function, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

RT_PAIR(hostcudaLaunch, _ptsz, (const char *kernel, cudaStream_t stream, void **args),
        RT_CALL(launch(own, kernel, stream, args)));
