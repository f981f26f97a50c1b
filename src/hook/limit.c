/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the ways to the driver's memory that no stack serves: each charges the account,
 * forwards, and settles (charge/charge.h). */
#include "base/arithmetic.h"
#include "charge/again.h"
#include "charge/array_size.h"
#include "charge/charge.h"
#include "driver/driver.h"
#include "hook/charged.h"
#include "hook/hook.h"
#include "introspect/introspect.h"

/* clang-format off */
#define HOOK_limit RS_HOOK_DECLARE
#define HOOK_count RS_HOOK_DECLARE
#define HOOK_lookup(symbol) /* the others: cuda.c, async.c, capture.c */
#define HOOK_device(symbol)
#define HOOK_managed(symbol)
#define HOOK_pinned(symbol)
#define HOOK_introspect(symbol)
#define HOOK_guard(symbol)
#define HOOK_capture(symbol)
#define HOOK_context(symbol)
#define HOOK_async(symbol)
#define HOOK_retry(symbol)
#define HOOK_wait(symbol)
/* clang-format on */
#define HOOK(symbol, name, since, until, stream, group, summary) HOOK_##group(symbol)
#include "driver/entry_points.def"

/* ---- stream-ordered memory ---- */

static CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size_bytes,
                                             CUmemoryPool pool, CUstream stream)
{
    RS_CHARGED_ASYNC(pool, false,
                     RS_FORWARD(cuMemAllocFromPoolAsync, (address, size_bytes, pool, stream)));
}

static CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size_bytes,
                                                  CUmemoryPool pool, CUstream stream)
{
    RS_CHARGED_ASYNC(pool, true,
                     RS_FORWARD(cuMemAllocFromPoolAsync_ptsz, (address, size_bytes, pool, stream)));
}

static CUresult hook_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    int device =
        props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? props->location.id : -1;
    CUresult result;

    RS_AGAIN(result, device, RS_FORWARD(cuMemPoolCreate, (pool, props)));
    if (result == CUDA_SUCCESS)
        rs_charge_pool_made(*pool, props->allocType, &props->location);
    return result;
}

/* `result`: of the call that gave *pool. */
static CUresult note_pool(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location,
                          CUmemAllocationType type)
{
    if (result == CUDA_SUCCESS)
        rs_charge_pool_made(*pool, type, location);
    return result;
}

static CUresult hook_cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                            CUmemAllocationType type)
{
    return note_pool(RS_FORWARD(cuMemGetDefaultMemPool, (pool, location, type)), pool, location,
                     type);
}

static CUresult hook_cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                     CUmemAllocationType type)
{
    return note_pool(RS_FORWARD(cuMemGetMemPool, (pool, location, type)), pool, location, type);
}

static CUresult hook_cuMemPoolDestroy(CUmemoryPool pool)
{
    struct rs_pool_record *record = rs_charge_pool_destroy_begin(pool);
    CUresult result = RS_FORWARD(cuMemPoolDestroy, (pool));

    rs_charge_pool_destroy_end(record, result);
    return result;
}

static CUresult hook_cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                            const CUgraphNode *dependencies, size_t count,
                                            CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    bool is_device = params && params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    int device = is_device ? params->poolProps.location.id : -1;
    CUresult result;

    if (is_device && !rs_charge_graph_node(device, params->bytesize))
        return CUDA_ERROR_OUT_OF_MEMORY;
    RS_AGAIN(result, device,
             RS_FORWARD(cuGraphAddMemAllocNode, (node, graph, dependencies, count, params)));
    return result;
}

/* ---- virtual memory ---- */

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size_bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags)
{
    return RS_FORWARD(cuMemCreate, (handle, size_bytes, prop, flags));
}

static CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size_bytes,
                                 const CUmemAllocationProp *prop, unsigned long long flags)
{
    if (!handle || !prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        prop->location.id < 0)
        return create(handle, size_bytes, prop, flags); /* of the host, or the driver's own error */
    RS_CHARGED(RS_PATH_VMM, prop->location.id, size_bytes, create(handle, size_bytes, prop, flags),
               *handle);
}

static CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct rs_charge charge;
    CUresult result;

    rs_charge_release_begin(&charge, handle);
    result = RS_FORWARD(cuMemRelease, (handle));
    rs_charge_release_end(&charge, result);
    return result;
}

static CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                                 void *address)
{
    CUresult result;

    /* The driver has none for what cuMemAlloc gave; ours may be mapped all the same. */
    if (rs_introspect((CUdeviceptr)(uintptr_t)address).what != RS_INTROSPECTED_FOREIGN)
        return CUDA_ERROR_INVALID_VALUE;
    result = RS_FORWARD(cuMemRetainAllocationHandle, (handle, address));
    if (result == CUDA_SUCCESS)
        rs_charge_retained(*handle, (CUdeviceptr)(uintptr_t)address);
    return result;
}

static CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                    void *shareable, CUmemAllocationHandleType type)
{
    CUresult result = RS_FORWARD(cuMemImportFromShareableHandle, (handle, shareable, type));

    if (result == CUDA_SUCCESS)
        rs_charge_retained(*handle, 0);
    return result;
}

static CUresult hook_cuMemMap(CUdeviceptr address, size_t size_bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct rs_mapping *mapping;
    CUresult result;

    if (!rs_charge_map_begin(&mapping, address, size_bytes, handle))
        return CUDA_ERROR_OUT_OF_MEMORY;
    RS_AGAIN(result, RS_AGAIN_CURRENT,
             RS_FORWARD(cuMemMap, (address, size_bytes, offset, handle, flags)));
    rs_charge_map_end(mapping, result);
    return result;
}

static CUresult hook_cuMemUnmap(CUdeviceptr address, size_t size_bytes)
{
    struct rs_mapping *mappings = rs_charge_unmap_begin(address, size_bytes);
    CUresult result = RS_FORWARD(cuMemUnmap, (address, size_bytes));

    rs_charge_unmap_end(mappings, result);
    return result;
}

/* ---- arrays ---- */

static CUresult hook_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {.Depth = 0};

    if (descriptor)
        full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = descriptor->Width,
                                         .Height = descriptor->Height,
                                         .Format = descriptor->Format,
                                         .NumChannels = descriptor->NumChannels};
    RS_CHARGED(RS_PATH_ARRAY, -1, rs_array_bytes(&full, 1),
               RS_FORWARD(cuArrayCreate_v2, (array, descriptor)), (uintptr_t)*array);
}

static CUresult hook_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    RS_CHARGED(RS_PATH_ARRAY, -1, descriptor ? rs_array_bytes(descriptor, 1) : 0,
               RS_FORWARD(cuArray3DCreate_v2, (array, descriptor)), (uintptr_t)*array);
}

static CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *array,
                                            const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                            unsigned levels)
{
    RS_CHARGED(RS_PATH_ARRAY, -1, descriptor ? rs_array_bytes(descriptor, levels) : 0,
               RS_FORWARD(cuMipmappedArrayCreate, (array, descriptor, levels)), (uintptr_t)*array);
}

static CUresult hook_cuArrayDestroy(CUarray array)
{
    RS_CHARGED_FREE(RS_KEYS_ARRAYS, (uintptr_t)array, RS_FORWARD(cuArrayDestroy, (array)));
}

static CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    RS_CHARGED_FREE(RS_KEYS_ARRAYS, (uintptr_t)array, RS_FORWARD(cuMipmappedArrayDestroy, (array)));
}
