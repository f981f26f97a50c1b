/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA Toolkit's driver API header, with every version of every function under its exported
 * name.  Without the internal switch cuda.h maps cuMemAlloc to cuMemAlloc_v2 by macro and hides
 * the per-thread-stream variants (_ptsz), so the functions that libcuda exports could not be
 * named. */
#pragma once

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#if CUDA_VERSION < 12000
#error "CUDA headers of 12.0 or newer are needed to build (any driver from 11.4 on is served)"
#endif

/* Declarations that the oldest headers accepted here do not have. */
#if CUDA_VERSION < 12020
#define CU_MEM_LOCATION_TYPE_HOST ((CUmemLocationType)2)
CUresult cuMemAdvise_v2(CUdeviceptr, size_t, CUmem_advise, CUmemLocation);
CUresult cuMemPrefetchAsync_v2(CUdeviceptr, size_t, CUmemLocation, unsigned, CUstream);
typedef struct CUgraphNodeParams_st {
    CUgraphNodeType type;
    int reserved[3];
    CUDA_MEM_ALLOC_NODE_PARAMS alloc; /* for a memory node */
} CUgraphNodeParams;
CUresult cuGraphAddNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUgraphNodeParams *);
#endif
#if CUDA_VERSION < 12030
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
CUresult cuStreamBeginCaptureToGraph(CUstream, CUgraph, const CUgraphNode *,
                                     const CUgraphEdgeData *, size_t, CUstreamCaptureMode);
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream, CUgraph, const CUgraphNode *,
                                          const CUgraphEdgeData *, size_t, CUstreamCaptureMode);
#endif
#if CUDA_VERSION < 12030
CUresult cuGraphAddNode_v2(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
                           size_t, CUgraphNodeParams *);
#endif
#if CUDA_VERSION < 12040
typedef struct CUgreenCtx_st *CUgreenCtx;
typedef struct CUdevResourceDesc_st *CUdevResourceDesc;
CUresult cuCtxFromGreenCtx(CUcontext *, CUgreenCtx);
CUresult cuFuncLoad(CUfunction);
CUresult cuGreenCtxCreate(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
CUresult cuGreenCtxDestroy(CUgreenCtx);
#endif
#if CUDA_VERSION < 12050
typedef struct CUctxCreateParams_st CUctxCreateParams;
CUresult cuCtxCreate_v4(CUcontext *, CUctxCreateParams *, unsigned, CUdevice);
CUresult cuCtxRecordEvent(CUcontext, CUevent);
CUresult cuGreenCtxStreamCreate(CUstream *, CUgreenCtx, unsigned, int);
CUresult cuStreamGetCtx_v2(CUstream, CUcontext *, CUgreenCtx *);
#endif
#if CUDA_VERSION < 13000
#define CU_MEM_ALLOCATION_TYPE_MANAGED ((CUmemAllocationType)2)
CUresult cuCtxSynchronize_v2(CUcontext);
CUresult cuMemGetDefaultMemPool(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
CUresult cuMemGetMemPool(CUmemoryPool *, CUmemLocation *, CUmemAllocationType);
#endif
/* Drivers have these functions from 13.1 on, but the headers only from 13.2 on. */
#if CUDA_VERSION < 13020
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
CUresult cuStreamBeginCaptureToCig(CUstream, CUstreamCigCaptureParams *);
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream, CUstreamCigCaptureParams *);
#endif
#if CUDA_VERSION < 13030
typedef void (*CUgraphRecaptureCallback)(void);
CUresult cuStreamBeginRecaptureToGraph(CUstream, CUstreamCaptureMode, CUgraph,
                                       CUgraphRecaptureCallback, void *);
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream, CUstreamCaptureMode, CUgraph,
                                            CUgraphRecaptureCallback, void *);
#endif
#if CUDA_VERSION < 13040
CUresult cuGraphAddNode_v3(CUgraphNode *, CUgraph, const CUgraphNode *, const CUgraphEdgeData *,
                           size_t, CUgraphNodeParams *);
#endif
