/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of memory that the program takes from the driver beside the stacks: pools of its own,
 * graphs, virtual memory and arrays.  Each charges the account, forwards the call, and settles the
 * charge (charge/charge.h). */
#include "charge/charge.h"
#include "charge/reclaim.h"
#include "config/mode.h"
#include "driver/driver.h"
#include "hook/charged.h"
#include "introspect/introspect.h"

#define HOOK_limit RS_HOOK_DECLARE
#define HOOK_count RS_HOOK_DECLARE
#include "hook/groups.h"

/* ---- stream-ordered memory ---- */

static CUresult call_allocate(const struct rs_charged_async *with)
{
    return RS_FORWARD(cuMemAllocFromPoolAsync,
                      (with->address, with->size_bytes, with->pool, with->stream));
}

static CUresult call_allocate_ptsz(const struct rs_charged_async *with)
{
    return RS_FORWARD(cuMemAllocFromPoolAsync_ptsz,
                      (with->address, with->size_bytes, with->pool, with->stream));
}

/* Without a pool: the driver's own error. */
static CUresult hook_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size_bytes,
                                             CUmemoryPool pool, CUstream stream)
{
    const struct rs_charged_async with = {address, size_bytes, pool, stream, false};

    return pool ? rs_charged_async(&with, call_allocate) : call_allocate(&with);
}

static CUresult hook_cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size_bytes,
                                                  CUmemoryPool pool, CUstream stream)
{
    const struct rs_charged_async with = {address, size_bytes, pool, stream, true};

    return pool ? rs_charged_async(&with, call_allocate_ptsz) : call_allocate_ptsz(&with);
}

/* Enters the pool that a successful call gave; the pointers of a call that failed may be NULL.
 * Managed memory counts wherever it prefers to lie; other memory by its location, whose id is a
 * device's number for a device alone (facts_h200.txt: pools.host_7). */
static CUresult note_pool(CUresult result, const CUmemoryPool *pool, const CUmemLocation *location,
                          CUmemAllocationType type)
{
    CUdevice device = 0;
    bool names_device;

    if (result != CUDA_SUCCESS || rs_mode_now() != RS_MODE_SERVE)
        return result;
    names_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    if (names_device)
        device = location->id;
    else if (!rs_driver.cuCtxGetDevice || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        device = 0;
    rs_charge_pool_made(*pool, device, !names_device && type != CU_MEM_ALLOCATION_TYPE_MANAGED);
    return result;
}

static CUresult hook_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    bool is_device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult result = RS_AGAIN(is_device ? props->location.id : RS_AGAIN_CURRENT,
                               RS_FORWARD(cuMemPoolCreate, (pool, props)));

    return result == CUDA_SUCCESS ? note_pool(result, pool, &props->location, props->allocType)
                                  : result;
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
    struct rs_pool_record *record = rs_mode_serving() ? rs_charge_pool_destroy_begin(pool) : NULL;
    CUresult result = RS_FORWARD(cuMemPoolDestroy, (pool));

    rs_charge_pool_destroy_end(record, result);
    return result;
}

static CUresult hook_cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                            const CUgraphNode *dependencies, size_t count,
                                            CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    bool is_device = params && params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    int device = is_device ? params->poolProps.location.id : RS_AGAIN_CURRENT;
    /* Without a place for the node, or a graph: the driver's own error. */
    bool is_counted = is_device && node && graph && rs_mode_now() == RS_MODE_SERVE;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (!is_counted || rs_charge_graph_node(device, params->bytesize))
        result = RS_AGAIN_FOR(
            device, 0,
            RS_FORWARD(cuGraphAddMemAllocNode, (node, graph, dependencies, count, params)));
    if (RS_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY) && is_counted)
        return rs_charged_refused(&(struct rs_charge_owner){.device = device}, RS_PATH_GRAPH,
                                  params->bytesize);
    return result;
}

/* ---- virtual memory ---- */

struct creation {
    CUmemGenericAllocationHandle *handle;
    size_t size_bytes;
    const CUmemAllocationProp *prop;
    unsigned long long flags;
};

static CUresult call_create(const void *arguments)
{
    const struct creation *with = arguments;

    return RS_FORWARD(cuMemCreate, (with->handle, with->size_bytes, with->prop, with->flags));
}

static CUresult undo_create(unsigned long long handle)
{
    return RS_FORWARD(cuMemRelease, (handle));
}

/* True for what no driver is known to grant. */
static bool is_odd_creation(const struct creation *with)
{
    size_t unit_bytes = 0;
    int devices = 0;

    if (with->flags != 0 || with->prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        !rs_driver.cuDeviceGetCount || rs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS ||
        with->prop->location.id >= devices || !rs_driver.cuMemGetAllocationGranularity)
        return true;
    return rs_driver.cuMemGetAllocationGranularity(
               &unit_bytes, with->prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
           unit_bytes == 0 || with->size_bytes % unit_bytes != 0;
}

static bool has_limit(int device)
{
    const struct rs_account *account = rs_limit_account(device);

    if (!account || rs_mode_now() != RS_MODE_SERVE || !rs_driver_ready(true))
        return false;
    rs_limit_resolve(device);
    return rs_account_has_limit(account);
}

static CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size_bytes,
                                 const CUmemAllocationProp *prop, unsigned long long flags)
{
    const struct creation arguments = {handle, size_bytes, prop, flags};
    const struct rs_charged_request request = {RS_PATH_VMM, size_bytes, handle, call_create,
                                               &arguments};

    if (!handle || !prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        prop->location.id < 0) /* memory of the host, or the driver's own error */
        return RS_AGAIN_HOST(size_bytes, call_create(&arguments));
    if (has_limit(prop->location.id) && is_odd_creation(&arguments))
        return rs_charged_later(prop->location.id, &request, undo_create);
    return rs_charged(prop->location.id, &request);
}

static CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct rs_charge charge = rs_charge_free_begin(rs_mode_serving(), RS_KEYS_HANDLES, handle);

    return rs_charge_free_end(charge, RS_FORWARD(cuMemRelease, (handle)));
}

static CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
                                                 void *address)
{
    bool serving = rs_mode_serving();
    CUresult result;

    /* The driver has no handle for memory of cuMemAlloc, whether a block is mapped memory or not.
     */
    if (rs_introspect_if(serving, (CUdeviceptr)(uintptr_t)address).what != RS_INTROSPECTED_FOREIGN)
        return CUDA_ERROR_INVALID_VALUE;
    result = RS_FORWARD(cuMemRetainAllocationHandle, (handle, address));
    if (result == CUDA_SUCCESS && serving)
        rs_charge_retained(*handle, (CUdeviceptr)(uintptr_t)address);
    return result;
}

static CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
                                                    void *shareable, CUmemAllocationHandleType type)
{
    CUresult result = RS_FORWARD(cuMemImportFromShareableHandle, (handle, shareable, type));

    if (result == CUDA_SUCCESS && rs_mode_serving())
        rs_charge_retained(*handle, 0);
    return result;
}

static CUresult hook_cuMemMap(CUdeviceptr address, size_t size_bytes, size_t offset,
                              CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    struct rs_mapping *mapping = NULL;
    CUresult result;

    if (rs_mode_serving() && !rs_charge_map_begin(&mapping, address, size_bytes, handle))
        return rs_again_refused(RS_AGAIN_CURRENT, 0);
    result = RS_AGAIN(RS_AGAIN_CURRENT,
                      RS_FORWARD(cuMemMap, (address, size_bytes, offset, handle, flags)));
    rs_charge_map_end(mapping, result);
    return result;
}

static CUresult hook_cuMemUnmap(CUdeviceptr address, size_t size_bytes)
{
    struct rs_mapping *mappings =
        rs_mode_serving() ? rs_charge_unmap_begin(address, size_bytes) : NULL;
    CUresult result = RS_FORWARD(cuMemUnmap, (address, size_bytes));

    rs_charge_unmap_end(mappings, result);
    return result;
}

/* ---- arrays ---- */

/* True for a description that the driver probably refuses: more elements in one direction than any
 * device has, or a number of channels that is only for the planes of a video. */
static bool is_odd_array(const CUDA_ARRAY3D_DESCRIPTOR *with)
{
    enum { WIDTH_MOST = 131072, HEIGHT_MOST = 131072, DEPTH_MOST = 16384 };

    return with->Width > WIDTH_MOST || with->Height > HEIGHT_MOST || with->Depth > DEPTH_MOST ||
           (with->NumChannels != 1 && with->NumChannels != 2 && with->NumChannels != 4);
}

static CUresult undo_array(unsigned long long array)
{
    return RS_FORWARD(cuArrayDestroy, ((CUarray)(uintptr_t)array));
}

static CUresult undo_mipmapped(unsigned long long array)
{
    return RS_FORWARD(cuMipmappedArrayDestroy, ((CUmipmappedArray)(uintptr_t)array));
}

static CUresult create_array(const struct rs_charged_request *request,
                             const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                             CUresult (*undo)(unsigned long long array))
{
    return descriptor && !is_odd_array(descriptor) ? rs_charged(RS_NO_DEVICE, request)
                                                   : rs_charged_later(RS_NO_DEVICE, request, undo);
}

struct array {
    CUarray *array;
    const CUDA_ARRAY_DESCRIPTOR *descriptor;
};

static CUresult call_create_array(const void *arguments)
{
    const struct array *with = arguments;

    return RS_FORWARD(cuArrayCreate_v2, (with->array, with->descriptor));
}

static CUresult hook_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    const struct array arguments = {array, descriptor};
    CUDA_ARRAY3D_DESCRIPTOR full = {.Depth = 0};

    if (descriptor)
        full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = descriptor->Width,
                                         .Height = descriptor->Height,
                                         .Format = descriptor->Format,
                                         .NumChannels = descriptor->NumChannels};
    return create_array(&(struct rs_charged_request){RS_PATH_ARRAY, rs_array_bytes(&full, 1), array,
                                                     call_create_array, &arguments},
                        &full, undo_array);
}

struct array_3d {
    CUarray *array;
    const CUDA_ARRAY3D_DESCRIPTOR *descriptor;
};

static CUresult call_create_array_3d(const void *arguments)
{
    const struct array_3d *with = arguments;

    return RS_FORWARD(cuArray3DCreate_v2, (with->array, with->descriptor));
}

static CUresult hook_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    const struct array_3d arguments = {array, descriptor};
    size_t size_bytes = descriptor ? rs_array_bytes(descriptor, 1) : 0;

    return create_array(&(struct rs_charged_request){RS_PATH_ARRAY, size_bytes, array,
                                                     call_create_array_3d, &arguments},
                        descriptor, undo_array);
}

struct mipmapped_array {
    CUmipmappedArray *array;
    const CUDA_ARRAY3D_DESCRIPTOR *descriptor;
    unsigned levels;
};

static CUresult call_create_mipmapped(const void *arguments)
{
    const struct mipmapped_array *with = arguments;

    return RS_FORWARD(cuMipmappedArrayCreate, (with->array, with->descriptor, with->levels));
}

static CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *array,
                                            const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                            unsigned levels)
{
    const struct mipmapped_array arguments = {array, descriptor, levels};
    size_t size_bytes = descriptor ? rs_array_bytes(descriptor, levels) : 0;

    return create_array(&(struct rs_charged_request){RS_PATH_ARRAY, size_bytes, array,
                                                     call_create_mipmapped, &arguments},
                        descriptor, undo_mipmapped);
}

static CUresult hook_cuArrayDestroy(CUarray array)
{
    struct rs_charge charge =
        rs_charge_free_begin(rs_mode_serving(), RS_KEYS_ARRAYS, (uintptr_t)array);

    return rs_charge_free_end(charge, RS_FORWARD(cuArrayDestroy, (array)));
}

static CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    struct rs_charge charge =
        rs_charge_free_begin(rs_mode_serving(), RS_KEYS_ARRAYS, (uintptr_t)array);

    return rs_charge_free_end(charge, RS_FORWARD(cuMipmappedArrayDestroy, (array)));
}
