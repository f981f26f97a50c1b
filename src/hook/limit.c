/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of memory that the program takes from the driver beside the stacks: pools of its own,
 * graphs, virtual memory and arrays. An allocation charges the device's account, forwards the call,
 * and keeps the charge if the call succeeded. A free gives the charge back (charge/charge.h). */
#include "charge/charge.h"
#include "config/mode.h"
#include "hook/charged.h"
#include "hook/hook.h"
#include "introspect/introspect.h"

/* Defines the hook of a call that frees an allocation, or gives up a handle of an allocation. */
#define FREE(symbol, parameters, arguments, keys, key)                                             \
    RS_HOOK_BETWEEN(symbol, parameters, arguments,                                                 \
                    rs_charge_free_begin(rs_mode_serving(), keys, key), rs_charge_free_end)

/* ---- stream-ordered memory ---- */

/* If the program passed no pool, nothing is charged and the driver answers with its own error. */
static CUresult allocate_from_pool(__typeof__(&cuMemAllocFromPoolAsync) real, bool is_per_thread,
                                   CUdeviceptr *address, size_t size_bytes, CUmemoryPool pool,
                                   CUstream stream)
{
    return RS_CHARGED(
        rs_charged_begin_async(pool ? address : NULL, size_bytes, pool, stream, is_per_thread),
        real ? real(address, size_bytes, pool, stream) : rs_hook_missing());
}

RS_HOOK_BY(cuMemAllocFromPoolAsync,
           (CUdeviceptr * address, size_t size_bytes, CUmemoryPool pool, CUstream stream),
           allocate_from_pool, false, address, size_bytes, pool, stream)
RS_HOOK_BY(cuMemAllocFromPoolAsync_ptsz,
           (CUdeviceptr * address, size_t size_bytes, CUmemoryPool pool, CUstream stream),
           allocate_from_pool, true, address, size_bytes, pool, stream)

/* If the call succeeded, notes the pool that it returned. Returns `result`. After a failed call the
 * pointers may be NULL. A pool of managed memory is always counted. Any other pool is counted only
 * if its location is a device: the id of another location is no device's number (facts_h200.txt:
 * pools.host_7). */
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

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    bool is_device = props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult result = RS_AGAIN(is_device ? props->location.id : RS_AGAIN_CURRENT,
                               RS_FORWARD(cuMemPoolCreate, (pool, props)));

    return result == CUDA_SUCCESS ? note_pool(result, pool, &props->location, props->allocType)
                                  : result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                CUmemAllocationType type)
{
    return note_pool(RS_FORWARD(cuMemGetDefaultMemPool, (pool, location, type)), pool, location,
                     type);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return note_pool(RS_FORWARD(cuMemGetMemPool, (pool, location, type)), pool, location, type);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct rs_pool_record *record = rs_mode_serving() ? rs_charge_pool_destroy_begin(pool) : NULL;
    CUresult result = RS_FORWARD(cuMemPoolDestroy, (pool));

    rs_charge_pool_destroy_end(record, result);
    return result;
}

/* ---- memory nodes of graphs ---- */

/* A node that is about to be made. */
struct node {
    int device;      /* the device whose memory it takes; RS_AGAIN_CURRENT: none, or not known */
    bool is_counted; /* the node takes size_bytes, which count against the device's limit */
    size_t size_bytes;
};

/* Describes a memory node, or with NULL as `props` a node of another type. Without is_complete the
 * call lacks an argument, so the driver answers with its own error and nothing is counted. */
static struct node memory_node(bool is_complete, const CUmemPoolProps *props, size_t size_bytes)
{
    if (!props || props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return (struct node){.device = RS_AGAIN_CURRENT};
    return (struct node){props->location.id, is_complete && rs_mode_now() == RS_MODE_SERVE,
                         size_bytes};
}

static struct node any_node(bool is_complete, const CUgraphNodeParams *params)
{
    bool is_memory = params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;

    return memory_node(is_complete, is_memory ? &params->alloc.poolProps : NULL,
                       is_memory ? params->alloc.bytesize : 0);
}

RS_COLD static CUresult node_refused(const struct node *node)
{
    return node->is_counted ? rs_charged_refused(&(struct rs_charge_owner){.device = node->device},
                                                 RS_PATH_GRAPH, node->size_bytes)
                            : rs_again_refused(node->device, 0);
}

/* Defines a hook that adds a node to a graph. `described` is the struct node; if the limit leaves
 * no room for it, the driver is not called. */
#define ADD_NODE(symbol, parameters, arguments, described)                                         \
    CUresult symbol parameters                                                                     \
    {                                                                                              \
        struct node about = described;                                                             \
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                                \
                                                                                                   \
        if (!about.is_counted || rs_charge_graph_node(about.device, about.size_bytes))             \
            result = RS_AGAIN_FOR(about.device, 0, RS_FORWARD(symbol, arguments));                 \
        return RS_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY) ? node_refused(&about) : result;    \
    }

ADD_NODE(cuGraphAddMemAllocNode,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
          CUDA_MEM_ALLOC_NODE_PARAMS *params),
         (node, graph, dependencies, count, params),
         memory_node(node &&graph, params ? &params->poolProps : NULL,
                     params ? params->bytesize : 0))
ADD_NODE(cuGraphAddNode,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
          CUgraphNodeParams *params),
         (node, graph, dependencies, count, params), any_node(node &&graph, params))
ADD_NODE(cuGraphAddNode_v2,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies,
          const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params),
         (node, graph, dependencies, edges, count, params), any_node(node &&graph, params))
ADD_NODE(cuGraphAddNode_v3,
         (CUgraphNode * node, CUgraph graph, const CUgraphNode *dependencies,
          const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *params),
         (node, graph, dependencies, edges, count, params), any_node(node &&graph, params))

/* ---- virtual memory ---- */

static CUresult undo_create(unsigned long long handle)
{
    return RS_FORWARD(cuMemRelease, (handle));
}

/* True for a request that the driver will refuse as invalid, and when that cannot be told. The
 * driver is then asked before the account is charged, so that the program gets the driver's error
 * and not out-of-memory. */
static bool is_odd_creation(size_t size_bytes, const CUmemAllocationProp *prop,
                            unsigned long long flags)
{
    size_t unit_bytes = 0;
    int devices = 0;

    if (flags != 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || !rs_driver.cuDeviceGetCount ||
        rs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS || prop->location.id >= devices ||
        !rs_driver.cuMemGetAllocationGranularity)
        return true;
    return rs_driver.cuMemGetAllocationGranularity(
               &unit_bytes, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
           unit_bytes == 0 || size_bytes % unit_bytes != 0;
}

static bool has_limit(int device)
{
    const struct rs_account *account = rs_limit_account(device);

    if (!account || rs_mode_now() != RS_MODE_SERVE || !rs_driver_ready(true))
        return false;
    rs_limit_resolve(device);
    return rs_account_most(account) != SIZE_MAX;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size_bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)
{
    bool is_odd;
    int device;

    if (!handle || !prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        /* Host memory is not counted; an invalid location gets the driver's own error. */
        prop->location.id < 0)
        return RS_AGAIN_HOST(size_bytes,
                             RS_FORWARD(cuMemCreate, (handle, size_bytes, prop, flags)));
    device = prop->location.id;
    is_odd = has_limit(device) && is_odd_creation(size_bytes, prop, flags);
    return RS_CHARGED(
        rs_charged_begin(device, RS_PATH_VMM, size_bytes, handle, is_odd ? undo_create : NULL),
        RS_FORWARD(cuMemCreate, (handle, size_bytes, prop, flags)));
}

FREE(cuMemRelease, (CUmemGenericAllocationHandle handle), (handle), RS_KEYS_HANDLES, handle)

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    bool serving = rs_mode_serving();
    CUresult result;

    /* The driver has no handle for memory of cuMemAlloc. So a block has none either, even if it
     * lies in mapped memory, which has one. */
    if (rs_introspect_if(serving, (CUdeviceptr)(uintptr_t)address).what != RS_INTROSPECTED_FOREIGN)
        return CUDA_ERROR_INVALID_VALUE;
    result = RS_FORWARD(cuMemRetainAllocationHandle, (handle, address));
    if (result == CUDA_SUCCESS && serving)
        rs_charge_retained(*handle, (CUdeviceptr)(uintptr_t)address);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type)
{
    CUresult result = RS_FORWARD(cuMemImportFromShareableHandle, (handle, shareable, type));

    if (result == CUDA_SUCCESS && rs_mode_serving())
        rs_charge_retained(*handle, 0);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t size_bytes, size_t offset,
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

CUresult cuMemUnmap(CUdeviceptr address, size_t size_bytes)
{
    struct rs_mapping *mappings =
        rs_mode_serving() ? rs_charge_unmap_begin(address, size_bytes) : NULL;
    CUresult result = RS_FORWARD(cuMemUnmap, (address, size_bytes));

    rs_charge_unmap_end(mappings, result);
    return result;
}

/* ---- arrays ---- */

/* True for an array that the driver will probably refuse: more elements in one direction than any
 * device supports, or a number of channels that only planes of video frames may have. */
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

static struct rs_charged_call begin_array(void *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                          unsigned levels, rs_charged_undo *undo)
{
    return rs_charged_begin(RS_NO_DEVICE, RS_PATH_ARRAY,
                            descriptor ? rs_array_bytes(descriptor, levels) : 0, array,
                            descriptor && !is_odd_array(descriptor) ? NULL : undo);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *descriptor)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {.Depth = 0};

    if (descriptor)
        full = (CUDA_ARRAY3D_DESCRIPTOR){.Width = descriptor->Width,
                                         .Height = descriptor->Height,
                                         .Format = descriptor->Format,
                                         .NumChannels = descriptor->NumChannels};
    return RS_CHARGED(begin_array(array, &full, 1, undo_array),
                      RS_FORWARD(cuArrayCreate_v2, (array, descriptor)));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor)
{
    return RS_CHARGED(begin_array(array, descriptor, 1, undo_array),
                      RS_FORWARD(cuArray3DCreate_v2, (array, descriptor)));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *descriptor,
                                unsigned levels)
{
    return RS_CHARGED(begin_array(array, descriptor, levels, undo_mipmapped),
                      RS_FORWARD(cuMipmappedArrayCreate, (array, descriptor, levels)));
}

FREE(cuArrayDestroy, (CUarray array), (array), RS_KEYS_ARRAYS, (uintptr_t)array)
FREE(cuMipmappedArrayDestroy, (CUmipmappedArray array), (array), RS_KEYS_ARRAYS, (uintptr_t)array)
