/* SPDX-License-Identifier: Apache-2.0 */
/* Marks every allocation that the program makes by name for the device (HOSTCUDA_WAITS). For
 * programs that run on hardware too: a test build includes this header first (-include), other
 * builds do not. */
#pragma once

#include "hostcuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#define cuMemAlloc_v2(...)          HOSTCUDA_REQUEST(cuMemAlloc_v2(__VA_ARGS__))
#define cuMemAllocPitch_v2(...)     HOSTCUDA_REQUEST(cuMemAllocPitch_v2(__VA_ARGS__))
#define cuMemAllocManaged(...)      HOSTCUDA_REQUEST(cuMemAllocManaged(__VA_ARGS__))
#define cuMemHostAlloc(...)         HOSTCUDA_REQUEST(cuMemHostAlloc(__VA_ARGS__))
#define cuMemCreate(...)            HOSTCUDA_REQUEST(cuMemCreate(__VA_ARGS__))
#define cuArrayCreate_v2(...)       HOSTCUDA_REQUEST(cuArrayCreate_v2(__VA_ARGS__))
#define cuArray3DCreate_v2(...)     HOSTCUDA_REQUEST(cuArray3DCreate_v2(__VA_ARGS__))
#define cuMipmappedArrayCreate(...) HOSTCUDA_REQUEST(cuMipmappedArrayCreate(__VA_ARGS__))
#define cudaMalloc(...)             HOSTCUDA_REQUEST(cudaMalloc(__VA_ARGS__))
#define cudaMallocPitch(...)        HOSTCUDA_REQUEST(cudaMallocPitch(__VA_ARGS__))
#define cudaMallocManaged(...)      HOSTCUDA_REQUEST(cudaMallocManaged(__VA_ARGS__))
#define cudaMallocHost(...)         HOSTCUDA_REQUEST(cudaMallocHost(__VA_ARGS__))
#define cudaHostAlloc(...)          HOSTCUDA_REQUEST(cudaHostAlloc(__VA_ARGS__))

/* Functions with a variant for the calling thread's own stream. */
#if !defined(CUDA_API_PER_THREAD_DEFAULT_STREAM)
#undef cuMemAllocAsync
#undef cuMemAllocFromPoolAsync
#undef cudaMallocAsync
#define cuMemAllocAsync(...)         HOSTCUDA_REQUEST(cuMemAllocAsync(__VA_ARGS__))
#define cuMemAllocFromPoolAsync(...) HOSTCUDA_REQUEST(cuMemAllocFromPoolAsync(__VA_ARGS__))
#define cudaMallocAsync(...)         HOSTCUDA_REQUEST(cudaMallocAsync(__VA_ARGS__))
#endif
