/* SPDX-License-Identifier: Apache-2.0 */
/* The driver functions that this runtime uses, each with the version to ask for. */
/* clang-format off */
#define RT_PLAIN_FUNCTIONS(X)               \
    X(cuInit, 2000)                         \
    X(cuDriverGetVersion, 2020)             \
    X(cuDeviceGet, 2000)                    \
    X(cuDeviceGetCount, 2000)               \
    X(cuDeviceGetName, 2000)                \
    X(cuDeviceGetUuid, 11040)               \
    X(cuDeviceGetAttribute, 2000)           \
    X(cuDeviceTotalMem, 3020)               \
    X(cuDevicePrimaryCtxRetain, 7000)       \
    X(cuDevicePrimaryCtxReset, 11000)       \
    X(cuDevicePrimaryCtxGetState, 7000)     \
    X(cuDeviceCanAccessPeer, 4000)          \
    X(cuCtxGetCurrent, 4000)                \
    X(cuCtxSetCurrent, 4000)                \
    X(cuCtxGetDevice, 2000)                 \
    X(cuCtxSynchronize, 2000)               \
    X(cuCtxGetStreamPriorityRange, 5050)    \
    X(cuCtxEnablePeerAccess, 4000)          \
    X(cuCtxDisablePeerAccess, 4000)         \
    X(cuMemAlloc, 3020)                     \
    X(cuMemFree, 3020)                      \
    X(cuMemAllocPitch, 3020)                \
    X(cuMemAllocManaged, 6000)              \
    X(cuMemGetInfo, 3020)                   \
    X(cuMemHostAlloc, 2020)                 \
    X(cuMemFreeHost, 2000)                  \
    X(cuMemHostRegister, 6050)              \
    X(cuMemHostUnregister, 4000)            \
    X(cuMemHostGetDevicePointer, 3020)      \
    X(cuMemHostGetFlags, 2030)              \
    X(cuPointerGetAttributes, 7000)         \
    X(cuIpcGetMemHandle, 4010)              \
    X(cuIpcOpenMemHandle, 11000)            \
    X(cuIpcCloseMemHandle, 4010)            \
    X(cuStreamCreate, 2000)                 \
    X(cuStreamCreateWithPriority, 5050)     \
    X(cuStreamDestroy, 4000)                \
    X(cuEventCreate, 2000)                  \
    X(cuEventDestroy, 4000)                 \
    X(cuEventQuery, 2000)                   \
    X(cuEventSynchronize, 2000)             \
    X(cuEventElapsedTime, 2000)             \
    X(cuThreadExchangeStreamCaptureMode, 10010) \
    X(cuGraphInstantiateWithFlags, 11040)   \
    X(cuGraphExecDestroy, 10000)            \
    X(cuGraphDestroy, 10000)                \
    X(cuModuleLoadData, 2000)               \
    X(cuModuleGetFunction, 2000)

/* Functions with a variant for the calling thread's own stream: the version of each variant. */
#define RT_STREAM_FUNCTIONS(X)                      \
    X(cuMemcpy, 4000, 7000_ptds)                    \
    X(cuMemcpyHtoD, 3020, 7000_ptds)                \
    X(cuMemcpyDtoH, 3020, 7000_ptds)                \
    X(cuMemcpyDtoD, 3020, 7000_ptds)                \
    X(cuMemcpyAsync, 4000, 7000_ptsz)               \
    X(cuMemcpyHtoDAsync, 3020, 7000_ptsz)           \
    X(cuMemcpyDtoHAsync, 3020, 7000_ptsz)           \
    X(cuMemcpyDtoDAsync, 3020, 7000_ptsz)           \
    X(cuMemcpy2D, 3020, 7000_ptds)                  \
    X(cuMemcpy2DAsync, 3020, 7000_ptsz)             \
    X(cuMemsetD8, 3020, 7000_ptds)                  \
    X(cuMemsetD8Async, 3020, 7000_ptsz)             \
    X(cuMemAllocAsync, 11020, 11020_ptsz)           \
    X(cuMemFreeAsync, 11020, 11020_ptsz)            \
    X(cuStreamQuery, 2000, 7000_ptsz)               \
    X(cuStreamSynchronize, 2000, 7000_ptsz)         \
    X(cuStreamWaitEvent, 3020, 7000_ptsz)           \
    X(cuStreamGetId, 12000, 12000_ptsz)             \
    X(cuStreamIsCapturing, 10000, 10000_ptsz)       \
    X(cuStreamBeginCapture, 10010, 10010_ptsz)      \
    X(cuStreamEndCapture, 10000, 10000_ptsz)        \
    X(cuGraphLaunch, 10000, 10000_ptsz)             \
    X(cuEventRecord, 2000, 7000_ptsz)               \
    X(cuLaunchHostFunc, 10000, 10000_ptsz)          \
    X(cuLaunchKernel, 4000, 7000_ptsz)
/* clang-format on */
