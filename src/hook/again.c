/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the calls for which the driver takes memory of its own: each is forwarded, and made
 * again after an out-of-memory error for which memory was given back (charge/reclaim.h). */
#include "charge/reclaim.h"

#include "base/check.h"
#include "driver/driver.h"

#include <string.h>

#define HOOK_retry RS_HOOK_DECLARE
#include "hook/groups.h"

enum { CURRENT = RS_AGAIN_CURRENT }; /* the device of the current context */

/* The driver's answer to a call that is made again while that may help. */
#define AGAIN(device, symbol, arguments) RS_AGAIN(device, RS_FORWARD(symbol, arguments))

/* ---- modules and libraries ---- */

enum { JIT_VALUES = 40 }; /* cuda.h has some 35 options */

/* Values of the compiler's options.  The driver writes its answers into some of them: the size of a
 * log's buffer becomes the length of the log, and would be the size of the next call's buffer. */
struct jit {
    void **values;
    unsigned count;
    void *kept[JIT_VALUES];
    int tries_left;
    uint64_t deadline_ns;
};

static struct jit jit_keep(void **values, unsigned count)
{
    struct jit jit = {.values = values, .count = values ? count : 0, .tries_left = RS_AGAIN_TRIES};

    if (jit.count > 0 && jit.count <= JIT_VALUES)
        memcpy(jit.kept, values, jit.count * sizeof(values[0]));
    return jit;
}

/* True when the call is to be made again, with the values as they were.  Only changed values are
 * written back: the program may keep constants in memory that cannot be written. */
static bool jit_again(struct jit *jit, CUresult result)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY || --jit->tries_left <= 0 || jit->count > JIT_VALUES ||
        !rs_again(result, CURRENT, 0, &jit->deadline_ns))
        return false;
    for (unsigned i = 0; i < jit->count; i++)
        if (jit->values[i] != jit->kept[i])
            jit->values[i] = jit->kept[i];
    return true;
}

static CUresult told(CUresult result)
{
    return RS_UNLIKELY(result == CUDA_ERROR_OUT_OF_MEMORY) ? rs_again_refused(CURRENT, 0) : result;
}

static CUresult hook_cuModuleLoad(CUmodule *module, const char *path)
{
    return AGAIN(CURRENT, cuModuleLoad, (module, path));
}

static CUresult hook_cuModuleLoadData(CUmodule *module, const void *image)
{
    return AGAIN(CURRENT, cuModuleLoadData, (module, image));
}

static CUresult hook_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                        CUjit_option *options, void **values)
{
    struct jit jit = jit_keep(values, count);
    CUresult result;

    do
        result = RS_FORWARD(cuModuleLoadDataEx, (module, image, count, options, values));
    while (jit_again(&jit, result));
    return told(result);
}

static CUresult hook_cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return AGAIN(CURRENT, cuModuleLoadFatBinary, (module, image));
}

static CUresult hook_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    return AGAIN(CURRENT, cuModuleGetFunction, (function, module, name));
}

static CUresult hook_cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size_bytes, CUmodule module,
                                          const char *name)
{
    return AGAIN(CURRENT, cuModuleGetGlobal_v2, (address, size_bytes, module, name));
}

static CUresult hook_cuFuncLoad(CUfunction function)
{
    return AGAIN(CURRENT, cuFuncLoad, (function));
}

static CUresult hook_cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options,
                                       void **values, unsigned count,
                                       CUlibraryOption *library_options, void **library_values,
                                       unsigned library_count)
{
    struct jit jit = jit_keep(values, count);
    CUresult result;

    do
        result = RS_FORWARD(cuLibraryLoadData, (library, image, options, values, count,
                                                library_options, library_values, library_count));
    while (jit_again(&jit, result));
    return told(result);
}

static CUresult hook_cuLibraryLoadFromFile(CUlibrary *library, const char *path,
                                           CUjit_option *options, void **values, unsigned count,
                                           CUlibraryOption *library_options, void **library_values,
                                           unsigned library_count)
{
    struct jit jit = jit_keep(values, count);
    CUresult result;

    do
        result =
            RS_FORWARD(cuLibraryLoadFromFile, (library, path, options, values, count,
                                               library_options, library_values, library_count));
    while (jit_again(&jit, result));
    return told(result);
}

static CUresult hook_cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    return AGAIN(CURRENT, cuLibraryGetModule, (module, library));
}

static CUresult hook_cuLibraryGetGlobal(CUdeviceptr *address, size_t *size_bytes, CUlibrary library,
                                        const char *name)
{
    return AGAIN(CURRENT, cuLibraryGetGlobal, (address, size_bytes, library, name));
}

static CUresult hook_cuLibraryGetManaged(CUdeviceptr *address, size_t *size_bytes,
                                         CUlibrary library, const char *name)
{
    return AGAIN(CURRENT, cuLibraryGetManaged, (address, size_bytes, library, name));
}

static CUresult hook_cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    return AGAIN(CURRENT, cuKernelGetFunction, (function, kernel));
}

/* ---- graphs ---- */

static CUresult hook_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                        char *log, size_t log_bytes)
{
    return AGAIN(CURRENT, cuGraphInstantiate, (exec, graph, error_node, log, log_bytes));
}

static CUresult hook_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph,
                                           CUgraphNode *error_node, char *log, size_t log_bytes)
{
    return AGAIN(CURRENT, cuGraphInstantiate_v2, (exec, graph, error_node, log, log_bytes));
}

static CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                                 unsigned long long flags)
{
    return AGAIN(CURRENT, cuGraphInstantiateWithFlags, (exec, graph, flags));
}

static CUresult hook_cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return AGAIN(CURRENT, cuGraphInstantiateWithParams, (exec, graph, params));
}

static CUresult hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return AGAIN(CURRENT, cuGraphInstantiateWithParams_ptsz, (exec, graph, params));
}

static CUresult hook_cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return AGAIN(CURRENT, cuGraphUpload, (exec, stream));
}

static CUresult hook_cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return AGAIN(CURRENT, cuGraphUpload_ptsz, (exec, stream));
}

/* A memory node takes its memory when it is made. */
static CUresult hook_cuGraphAddNode(CUgraphNode *node, CUgraph graph,
                                    const CUgraphNode *dependencies, size_t count,
                                    CUgraphNodeParams *params)
{
    return AGAIN(CURRENT, cuGraphAddNode, (node, graph, dependencies, count, params));
}

static CUresult hook_cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph,
                                       const CUgraphNode *dependencies,
                                       const CUgraphEdgeData *edges, size_t count,
                                       CUgraphNodeParams *params)
{
    return AGAIN(CURRENT, cuGraphAddNode_v2, (node, graph, dependencies, edges, count, params));
}

static CUresult hook_cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph,
                                       const CUgraphNode *dependencies,
                                       const CUgraphEdgeData *edges, size_t count,
                                       CUgraphNodeParams *params)
{
    return AGAIN(CURRENT, cuGraphAddNode_v3, (node, graph, dependencies, edges, count, params));
}

/* ---- streams and events ---- */

static CUresult hook_cuStreamCreate(CUstream *stream, unsigned flags)
{
    return AGAIN(CURRENT, cuStreamCreate, (stream, flags));
}

static CUresult hook_cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    return AGAIN(CURRENT, cuStreamCreateWithPriority, (stream, flags, priority));
}

/* The device of a green context: a stream is created in it without a current context. */
static int device_of(CUgreenCtx green)
{
    CUdevice device = CURRENT;
    CUcontext context;
    CUresult result;
    bool entered;

    if (!rs_driver.cuCtxFromGreenCtx || !rs_driver.cuCtxGetDevice ||
        rs_driver.cuCtxFromGreenCtx(&context, green) != CUDA_SUCCESS)
        return CURRENT;
    entered = rs_driver_context_enter(context, &result);
    if (result == CUDA_SUCCESS && rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        device = CURRENT;
    rs_driver_context_leave(entered);
    return device;
}

static CUresult hook_cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned flags,
                                            int priority)
{
    return AGAIN(device_of(green), cuGreenCtxStreamCreate, (stream, green, flags, priority));
}

static CUresult hook_cuEventCreate(CUevent *event, unsigned flags)
{
    return AGAIN(CURRENT, cuEventCreate, (event, flags));
}

/* ---- contexts ---- */

static CUresult hook_cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    return AGAIN(device, cuCtxCreate, (context, flags, device));
}

static CUresult hook_cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    return AGAIN(device, cuCtxCreate_v2, (context, flags, device));
}

static CUresult hook_cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
                                    unsigned flags, CUdevice device)
{
    return AGAIN(device, cuCtxCreate_v3, (context, affinity, count, flags, device));
}

static CUresult hook_cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned flags,
                                    CUdevice device)
{
    return AGAIN(device, cuCtxCreate_v4, (context, params, flags, device));
}

static CUresult hook_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return AGAIN(device, cuDevicePrimaryCtxRetain, (context, device));
}

static CUresult hook_cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc description,
                                      CUdevice device, unsigned flags)
{
    return AGAIN(device, cuGreenCtxCreate, (context, description, device, flags));
}

static CUresult hook_cuCtxSetLimit(CUlimit limit, size_t value)
{
    return AGAIN(CURRENT, cuCtxSetLimit, (limit, value));
}

/* ---- page tables ---- */

static CUresult hook_cuMemHostRegister(void *address, size_t size_bytes, unsigned flags)
{
    return RS_AGAIN_HOST(size_bytes, RS_FORWARD(cuMemHostRegister, (address, size_bytes, flags)));
}

static CUresult hook_cuMemHostRegister_v2(void *address, size_t size_bytes, unsigned flags)
{
    return RS_AGAIN_HOST(size_bytes,
                         RS_FORWARD(cuMemHostRegister_v2, (address, size_bytes, flags)));
}

/* Access that was set before the call failed is set again, to the same. */
static CUresult hook_cuMemSetAccess(CUdeviceptr address, size_t size_bytes,
                                    const CUmemAccessDesc *access, size_t count)
{
    bool is_device = access && count > 0 && access->location.type == CU_MEM_LOCATION_TYPE_DEVICE;

    return AGAIN(is_device ? access->location.id : CURRENT, cuMemSetAccess,
                 (address, size_bytes, access, count));
}
