/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of stream-ordered memory from the device's current pool, and of its frees. If RMM_HOOKS
 * names the group, the stack serves allocations in the order of their streams. The driver serves
 * them where the stream captures, where the current pool is not the default one or the program gave
 * other devices access to it, and where the stack's frees wait. A free of a stack's device memory
 * is served whichever call allocated the block. */
#include "base/log.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/context.h"
#include "context/table.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/stream.h"
#include "hook/allocation.h"
#include "hook/caller.h"
#include "hook/charged.h"
#include "hook/hook.h"
#include "introspect/introspect.h"
#include "ipc/import.h"

#include <stdatomic.h>

/* Sets of devices, bit n for device n. shared_devices: the program gave other devices access to
 * this device's default pool. served_devices: a stack has served a stream-ordered allocation on
 * it. */
static _Atomic uint64_t shared_devices, served_devices;

/* Returns the stream; for NULL the handle of the default stream that is meant, which is not
 * NULL. */
static CUstream named(CUstream stream, bool is_per_thread)
{
    return stream ? stream : is_per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
}

/* Returns the stream's context; NULL if the driver does not tell. */
static CUcontext context_of_stream(CUstream stream)
{
    CUcontext context = NULL;
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        result = rs_driver.cuCtxGetCurrent(&context);
    else if (rs_driver.cuStreamGetCtx)
        result = rs_driver.cuStreamGetCtx(stream, &context);
    return result == CUDA_SUCCESS ? context : NULL;
}

/* Asks the driver whether the stream captures. Returns the driver's result; an error is what the
 * driver would answer to any call about this stream. */
static CUresult ask_capturing(CUstream stream, bool *is_capturing)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = rs_driver.cuStreamIsCapturing ? rs_driver.cuStreamIsCapturing(stream, &status)
                                                    : CUDA_SUCCESS;

    *is_capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return result;
}

/* ---- allocation ---- */

/* Stores the device of the current context, which is the stream's. Returns false when only the
 * device's current pool can serve the allocation: the program made that pool, or gave other devices
 * access to it, which they would not have to a stack's memory. */
static bool may_replace_pool(CUdevice *device)
{
    CUmemoryPool usual = NULL, current = NULL;

    return rs_driver.cuCtxGetDevice(device) == CUDA_SUCCESS && *device < RS_DEVICES_MAX &&
           !(atomic_load_explicit(&shared_devices, memory_order_relaxed) >> *device & 1) &&
           rs_driver.cuDeviceGetDefaultMemPool && rs_driver.cuDeviceGetMemPool &&
           rs_driver.cuDeviceGetDefaultMemPool(&usual, *device) == CUDA_SUCCESS &&
           rs_driver.cuDeviceGetMemPool(&current, *device) == CUDA_SUCCESS && usual == current;
}

static bool allocate_on(CUstream stream, size_t size_bytes, unsigned object, CUdeviceptr *address,
                        CUresult *result)
{
    CUcontext context, current = NULL;
    bool is_capturing, served;
    CUresult entering;
    CUdevice device;

    if (rs_driver.cuCtxGetCurrent(&current) != CUDA_SUCCESS || !current ||
        ask_capturing(stream, &is_capturing) != CUDA_SUCCESS || is_capturing)
        return false; /* forwarded: without a context or for an invalid stream the driver answers
                         with its own error; in a capture it adds an allocation node to the graph */
    context = context_of_stream(stream);
    if (!context)
        return false;
    RS_CONTEXT_GUARD(context, &entering);
    served = entering == CUDA_SUCCESS && may_replace_pool(&device) &&
             rs_shim_allocate(RS_MODE_SERVE, RS_HOOK_GROUP_ASYNC, 0, size_bytes, stream, object,
                              address, result);
    if (served && *result == CUDA_SUCCESS &&
        !(atomic_load_explicit(&served_devices, memory_order_relaxed) >> device & 1))
        atomic_fetch_or(&served_devices, 1ull << device);
    return served;
}

static bool allocate_async(size_t size_bytes, CUstream stream, unsigned object,
                           CUdeviceptr *address, CUresult *result)
{
    if (!address || size_bytes == 0 || rs_mode_now() != RS_MODE_SERVE ||
        !(rs_config.hook_groups & RS_HOOK_GROUP_ASYNC) || !rs_driver_ready(true))
        return false;
    RS_RELAXED_GUARD();
    return allocate_on(stream, size_bytes, object, address, result);
}

static CUresult allocate_or_forward(__typeof__(&cuMemAllocAsync) real, bool is_per_thread,
                                    unsigned object, CUdeviceptr *address, size_t size_bytes,
                                    CUstream stream)
{
    CUresult served;

    if (allocate_async(size_bytes, named(stream, is_per_thread), object, address, &served))
        return served;
    return RS_CHARGED(rs_charged_begin_async(address, size_bytes, NULL, stream, is_per_thread),
                      real ? real(address, size_bytes, stream) : rs_hook_missing());
}

RS_HOOK_BY(cuMemAllocAsync, (CUdeviceptr * address, size_t size_bytes, CUstream stream),
           allocate_or_forward, false, RS_CALLER_OBJECT(), address, size_bytes, stream)
RS_HOOK_BY(cuMemAllocAsync_ptsz, (CUdeviceptr * address, size_t size_bytes, CUstream stream),
           allocate_or_forward, true, RS_CALLER_OBJECT(), address, size_bytes, stream)

/* ---- other devices ---- */

/* Contexts of a device whose stacks may hold served allocations. */
struct servers {
    CUdevice device;
    CUcontext contexts[8];
    unsigned count;
    bool more; /* there are more contexts than the array holds */
};

static void add_server(struct servers *servers, const struct rs_stack *stack)
{
    if (stack->environment.device != servers->device || stack->kind != RS_KIND_DEVICE)
        return;
    for (unsigned i = 0; i < servers->count; i++)
        if (servers->contexts[i] == stack->context->handle)
            return;
    if (servers->count < RS_ARRAY_LENGTH(servers->contexts))
        servers->contexts[servers->count++] = stack->context->handle;
    else
        servers->more = true;
}

/* Gives the device `peer` access to the memory of the stacks of `device` that have served so far,
 * as it has to memory of the driver's pool. Returns false if that is impossible for some of it. */
static bool lend_served(CUdevice device, CUdevice peer)
{
    RS_RELAXED_GUARD();
    struct servers servers = {.device = device};
    bool lent;

    RS_EACH_STACK(walk)
        add_server(&servers, walk.stack);
    lent = !servers.more;
    for (unsigned i = 0; i < servers.count; i++)
        lent = rs_peer_lend(servers.contexts[i], peer) && lent;
    return lent;
}

static bool is_for_others(const CUmemAccessDesc *access, CUdevice device)
{
    return access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
           (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE || access->location.id != device);
}

/* Called when the program has set access to the device's default pool. If other devices got access,
 * that pool itself serves cuMemAllocAsync from now on. */
static void note_shared(CUdevice device, const CUmemAccessDesc *access, size_t count)
{
    static bool said;
    bool shared = false, reached = true;

    for (size_t i = 0; i < count; i++)
        shared = shared || is_for_others(&access[i], device);
    if (!shared)
        return;
    atomic_fetch_or(&shared_devices, 1ull << device);
    if (!(atomic_load(&served_devices) >> device & 1))
        return;
    for (size_t i = 0; i < count; i++)
        if (is_for_others(&access[i], device))
            reached = access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
                      lend_served(device, access[i].location.id) && reached;
    if (!reached && rs_log_once(&said))
        rs_log("cuMemPoolSetAccess: memory that rmmshim has served so far for cudaMallocAsync on "
               "device %d cannot be used by other devices; later memory can, since the driver "
               "serves it from now on; leave async out of RMM_HOOKS to have the driver serve it "
               "from the start",
               device);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    CUresult result = RS_FORWARD(cuMemPoolSetAccess, (pool, access, count));
    CUmemoryPool usual;
    int devices = 0;

    /* Shared pools are noted even before the settings are read, since stacks may serve later. */
    if (result != CUDA_SUCCESS || atomic_load(&rs_mode_current) == RS_MODE_FORWARD ||
        !rs_driver.cuDeviceGetDefaultMemPool ||
        rs_driver.cuDeviceGetCount(&devices) != CUDA_SUCCESS)
        return result;
    for (int device = 0; device < devices && device < RS_DEVICES_MAX; device++)
        if (rs_driver.cuDeviceGetDefaultMemPool(&usual, device) == CUDA_SUCCESS && usual == pool)
            note_shared(device, access, count);
    return result;
}

/* ---- deallocation ---- */

/* True for a stream of the block's context, or of a green context that shares its memory. */
static bool is_stream_of_owner(CUstream stream, const struct rs_block_view *block)
{
    RS_RELAXED_GUARD();
    CUcontext context = context_of_stream(stream);
    const struct rs_context *owner = NULL;
    CUresult result;

    if (!context || context == block->context)
        return context;
    RS_CONTEXT_GUARD(context, &result);
    if (result == CUDA_SUCCESS)
        owner = rs_context_current(false);
    return owner && owner->handle == block->context;
}

static struct rs_stack *stack_of(CUdeviceptr address)
{
    struct rs_block_record *block = rs_block_lookup(address);

    return block ? rs_block_stack(block) : NULL;
}

/* True when the stack frees the block by cuMemFreeAsync on this very stream. False for a default
 * stream, which the driver would take for the default stream of the block's context. */
static bool is_freed_there(const struct rs_stack *stack, CUstream stream)
{
    return stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD &&
           rs_mr_deallocates_in_order(atomic_load(&stack->mr));
}

static bool is_idle(CUstream stream)
{
    RS_RELAXED_GUARD();

    return rs_driver.cuStreamQuery(stream) == CUDA_SUCCESS;
}

/* Makes a stream of the library in the block's context `owner` wait for all earlier work of the
 * context of the program's `stream`. Returns false if that is impossible. */
static bool join_stream(CUstream stream, struct rs_context *owner)
{
    CUcontext context = context_of_stream(stream);
    CUstream joining =
        context && rs_fence_supported() ? rs_own_stream(&owner->joining, owner->handle) : NULL;

    return joining && rs_fence_join(context, joining);
}

/* Orders a free after the work of `stream`, which belongs to another context than the block. The
 * fences of the block's context do not cover that work, until a stream of the library in that
 * context waits for it (nothing is ever recorded on a program's stream). If this is impossible (on
 * an old driver, while a stream captures, or if freed memory is reused without fences), the free
 * waits for the work, as cudaFree may. */
static CUresult come_after(CUstream stream, const struct rs_stack *stack)
{
    if (stack && stack->environment.frees_are_ready &&
        (is_idle(stream) || join_stream(stream, stack->context)))
        return CUDA_SUCCESS;
    return rs_own_stream_wait(stream);
}

/* Returns the driver's error for a wrong free, else CUDA_SUCCESS. A free on a capturing stream is
 * wrong too: the driver would make it a node of the graph, and no node can free a stack's block. */
static CUresult check_free(const struct rs_introspection *found, CUdeviceptr address,
                           CUstream stream)
{
    bool is_capturing;
    CUresult result;

    if (found->what == RS_INTROSPECTED_BLOCK && found->block.kind == RS_KIND_MANAGED)
        return address == found->block.address ? CUDA_ERROR_NOT_SUPPORTED
                                               : CUDA_ERROR_INVALID_VALUE;
    result = ask_capturing(stream, &is_capturing);
    return result == CUDA_SUCCESS && is_capturing ? CUDA_ERROR_INVALID_VALUE : result;
}

/* Frees a block of a stack, or answers a wrong free with the driver's error. Returns false if the
 * driver must make the call. The caller has made sure that stacks serve. */
static bool free_async(CUdeviceptr address, CUstream stream, CUresult *result)
{
    struct rs_introspection found = rs_introspect_if(true, address);

    if (found.what == RS_INTROSPECTED_FOREIGN || found.what == RS_INTROSPECTED_OPENED)
        return false;
    *result = check_free(&found, address, stream);
    if (*result != CUDA_SUCCESS)
        return true;
    if (found.what == RS_INTROSPECTED_BLOCK && !is_stream_of_owner(stream, &found.block)) {
        const struct rs_stack *stack = stack_of(address);
        if (!stack || !is_freed_there(stack, stream)) {
            *result = come_after(stream, stack);
            if (*result != CUDA_SUCCESS)
                return true;
            stream = NULL;
        }
    }
    return rs_shim_free_in_order(address, stream, result);
}

static CUresult free_or_forward(__typeof__(&cuMemFreeAsync) real, bool is_per_thread,
                                CUdeviceptr address, CUstream stream)
{
    bool serving = rs_mode_serving();
    struct rs_charged *record;
    CUresult result;

    if (serving && free_async(address, named(stream, is_per_thread), &result))
        return result;
    if (rs_import_has(address))
        return CUDA_ERROR_INVALID_VALUE;
    record = rs_charge_free_begin(serving, RS_KEYS_ADDRESSES, address);
    return rs_charge_free_end(record, real ? real(address, stream) : rs_hook_missing());
}

RS_HOOK_BY(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_or_forward, false, address,
           stream)
RS_HOOK_BY(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream), free_or_forward, true,
           address, stream)
