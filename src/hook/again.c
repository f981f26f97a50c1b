/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of calls for which the driver takes memory of its own: forwarded, and made again where that
 * is what was missing (charge/again.h). */
#include "charge/again.h"

#include "base/check.h"
#include "driver/context.h"
#include "driver/driver.h"
#include "hook/hook.h"

#include <string.h>

/* clang-format off */
#define HOOK_retry RS_HOOK_DECLARE
#define HOOK_lookup(symbol) /* the others: cuda.c, async.c, capture.c, limit.c */
#define HOOK_device(symbol)
#define HOOK_managed(symbol)
#define HOOK_pinned(symbol)
#define HOOK_introspect(symbol)
#define HOOK_guard(symbol)
#define HOOK_capture(symbol)
#define HOOK_context(symbol)
#define HOOK_async(symbol)
#define HOOK_limit(symbol)
#define HOOK_count(symbol)
#define HOOK_wait(symbol)
/* clang-format on */
#define HOOK(symbol, name, since, until, stream, group, summary) HOOK_##group(symbol)
#include "driver/entry_points.def"

enum { CURRENT = RS_AGAIN_CURRENT }; /* the device of the current context */

/* Forwards, as the whole of a hook. */
#define FORWARD(device, symbol, arguments)                                                         \
    do {                                                                                           \
        CUresult answer;                                                                           \
        RS_AGAIN(answer, device, RS_FORWARD(symbol, arguments));                                   \
        return answer;                                                                             \
    } while (0)

/* ---- modules and libraries ---- */

enum { JIT_VALUES = 40 }; /* cuda.h knows some 35 options */

/* Options of the compiler, some of which it answers in: the size of a log's buffer becomes the
 * log's length, which would be the next call's size. */
struct jit {
    void **values;
    unsigned count;
    void *kept[JIT_VALUES];
};

static struct jit jit_keep(void **values, unsigned count)
{
    struct jit jit = {.values = values, .count = values ? count : 0};

    if (jit.count > 0 && jit.count <= JIT_VALUES)
        memcpy(jit.kept, values, jit.count * sizeof(values[0]));
    return jit;
}

/* Writes what was changed alone, as the program may keep constants in memory that cannot be
 * written. */
static bool jit_again(const struct jit *jit, CUresult result, uint64_t *deadline_ns)
{
    if (jit->count > JIT_VALUES || !rs_again(result, CURRENT, deadline_ns))
        return false;
    for (unsigned i = 0; i < jit->count; i++)
        if (jit->values[i] != jit->kept[i])
            jit->values[i] = jit->kept[i];
    return true;
}

#define FORWARD_JIT(values, count, symbol, arguments)                                              \
    do {                                                                                           \
        struct jit jit = jit_keep(values, count);                                                  \
        int tries_left = RS_AGAIN_TRIES;                                                           \
        uint64_t deadline_ns = 0;                                                                  \
        CUresult answer;                                                                           \
        do                                                                                         \
            answer = RS_FORWARD(symbol, arguments);                                                \
        while (answer == CUDA_ERROR_OUT_OF_MEMORY && --tries_left > 0 &&                           \
               jit_again(&jit, answer, &deadline_ns));                                             \
        return answer;                                                                             \
    } while (0)

static CUresult hook_cuModuleLoad(CUmodule *module, const char *path)
{
    FORWARD(CURRENT, cuModuleLoad, (module, path));
}

static CUresult hook_cuModuleLoadData(CUmodule *module, const void *image)
{
    FORWARD(CURRENT, cuModuleLoadData, (module, image));
}

static CUresult hook_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count,
                                        CUjit_option *options, void **values)
{
    FORWARD_JIT(values, count, cuModuleLoadDataEx, (module, image, count, options, values));
}

static CUresult hook_cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    FORWARD(CURRENT, cuModuleLoadFatBinary, (module, image));
}

static CUresult hook_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    FORWARD(CURRENT, cuModuleGetFunction, (function, module, name));
}

static CUresult hook_cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *size_bytes, CUmodule module,
                                          const char *name)
{
    FORWARD(CURRENT, cuModuleGetGlobal_v2, (address, size_bytes, module, name));
}

static CUresult hook_cuFuncLoad(CUfunction function)
{
    FORWARD(CURRENT, cuFuncLoad, (function));
}

static CUresult hook_cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *options,
                                       void **values, unsigned count,
                                       CUlibraryOption *library_options, void **library_values,
                                       unsigned library_count)
{
    FORWARD_JIT(
        values, count, cuLibraryLoadData,
        (library, image, options, values, count, library_options, library_values, library_count));
}

static CUresult hook_cuLibraryLoadFromFile(CUlibrary *library, const char *path,
                                           CUjit_option *options, void **values, unsigned count,
                                           CUlibraryOption *library_options, void **library_values,
                                           unsigned library_count)
{
    FORWARD_JIT(
        values, count, cuLibraryLoadFromFile,
        (library, path, options, values, count, library_options, library_values, library_count));
}

static CUresult hook_cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    FORWARD(CURRENT, cuLibraryGetModule, (module, library));
}

static CUresult hook_cuLibraryGetGlobal(CUdeviceptr *address, size_t *size_bytes, CUlibrary library,
                                        const char *name)
{
    FORWARD(CURRENT, cuLibraryGetGlobal, (address, size_bytes, library, name));
}

static CUresult hook_cuLibraryGetManaged(CUdeviceptr *address, size_t *size_bytes,
                                         CUlibrary library, const char *name)
{
    FORWARD(CURRENT, cuLibraryGetManaged, (address, size_bytes, library, name));
}

static CUresult hook_cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    FORWARD(CURRENT, cuKernelGetFunction, (function, kernel));
}

/* ---- graphs ---- */

static CUresult hook_cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                                        char *log, size_t log_bytes)
{
    FORWARD(CURRENT, cuGraphInstantiate, (exec, graph, error_node, log, log_bytes));
}

static CUresult hook_cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph,
                                           CUgraphNode *error_node, char *log, size_t log_bytes)
{
    FORWARD(CURRENT, cuGraphInstantiate_v2, (exec, graph, error_node, log, log_bytes));
}

static CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
                                                 unsigned long long flags)
{
    FORWARD(CURRENT, cuGraphInstantiateWithFlags, (exec, graph, flags));
}

static CUresult hook_cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    FORWARD(CURRENT, cuGraphInstantiateWithParams, (exec, graph, params));
}

static CUresult hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                       CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    FORWARD(CURRENT, cuGraphInstantiateWithParams_ptsz, (exec, graph, params));
}

static CUresult hook_cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    FORWARD(CURRENT, cuGraphUpload, (exec, stream));
}

static CUresult hook_cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    FORWARD(CURRENT, cuGraphUpload_ptsz, (exec, stream));
}

/* A node of memory takes it when it is made. */
static CUresult hook_cuGraphAddNode(CUgraphNode *node, CUgraph graph,
                                    const CUgraphNode *dependencies, size_t count,
                                    CUgraphNodeParams *params)
{
    FORWARD(CURRENT, cuGraphAddNode, (node, graph, dependencies, count, params));
}

static CUresult hook_cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph,
                                       const CUgraphNode *dependencies,
                                       const CUgraphEdgeData *edges, size_t count,
                                       CUgraphNodeParams *params)
{
    FORWARD(CURRENT, cuGraphAddNode_v2, (node, graph, dependencies, edges, count, params));
}

static CUresult hook_cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph,
                                       const CUgraphNode *dependencies,
                                       const CUgraphEdgeData *edges, size_t count,
                                       CUgraphNodeParams *params)
{
    FORWARD(CURRENT, cuGraphAddNode_v3, (node, graph, dependencies, edges, count, params));
}

/* ---- streams and events ---- */

static CUresult hook_cuStreamCreate(CUstream *stream, unsigned flags)
{
    FORWARD(CURRENT, cuStreamCreate, (stream, flags));
}

static CUresult hook_cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    FORWARD(CURRENT, cuStreamCreateWithPriority, (stream, flags, priority));
}

/* No context need be current for a stream of a green context. */
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
    FORWARD(device_of(green), cuGreenCtxStreamCreate, (stream, green, flags, priority));
}

static CUresult hook_cuEventCreate(CUevent *event, unsigned flags)
{
    FORWARD(CURRENT, cuEventCreate, (event, flags));
}

/* ---- contexts ---- */

static CUresult hook_cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    FORWARD(device, cuCtxCreate, (context, flags, device));
}

static CUresult hook_cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    FORWARD(device, cuCtxCreate_v2, (context, flags, device));
}

static CUresult hook_cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count,
                                    unsigned flags, CUdevice device)
{
    FORWARD(device, cuCtxCreate_v3, (context, affinity, count, flags, device));
}

static CUresult hook_cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *params, unsigned flags,
                                    CUdevice device)
{
    FORWARD(device, cuCtxCreate_v4, (context, params, flags, device));
}

static CUresult hook_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    FORWARD(device, cuDevicePrimaryCtxRetain, (context, device));
}

static CUresult hook_cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc description,
                                      CUdevice device, unsigned flags)
{
    FORWARD(device, cuGreenCtxCreate, (context, description, device, flags));
}

static CUresult hook_cuCtxSetLimit(CUlimit limit, size_t value)
{
    FORWARD(CURRENT, cuCtxSetLimit, (limit, value));
}

/* ---- page tables ---- */

static CUresult hook_cuMemHostRegister(void *address, size_t size_bytes, unsigned flags)
{
    FORWARD(RS_AGAIN_CURRENT_AT_ONCE, cuMemHostRegister, (address, size_bytes, flags));
}

static CUresult hook_cuMemHostRegister_v2(void *address, size_t size_bytes, unsigned flags)
{
    FORWARD(RS_AGAIN_CURRENT_AT_ONCE, cuMemHostRegister_v2, (address, size_bytes, flags));
}

/* What it set before it failed is set again to the same. */
static CUresult hook_cuMemSetAccess(CUdeviceptr address, size_t size_bytes,
                                    const CUmemAccessDesc *access, size_t count)
{
    bool is_device = access && count > 0 && access->location.type == CU_MEM_LOCATION_TYPE_DEVICE;

    FORWARD(is_device ? access->location.id : CURRENT, cuMemSetAccess,
            (address, size_bytes, access, count));
}
