/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of questions about memory: each forwards the question and corrects the driver's answer, so
 * that a block looks like an allocation of the driver's own. */
#include "introspect/introspect.h"
#include "base/check.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/limit.h"
#include "context/table.h"
#include "hook/hook.h"
#include "ipc/import.h"
#include "shim/commands.h"

#include <stdatomic.h>
#include <string.h>

/* ---- sizes of memory ---- */

/* Lowers *total_bytes to the device's limit, and *free_bytes to what the limit leaves; does nothing
 * without a limit. free_bytes may be NULL. idle_bytes of the charged bytes are held idle by stacks
 * and count as free. */
static void observe_limit(int device, size_t idle_bytes, size_t *free_bytes, size_t *total_bytes)
{
    size_t limit = rs_limit_get(device), job_limit = 0, others = 0, charged, live;

    if (rs_limit_job(device, &job_limit, &others))
        limit = limit ? rs_min(limit, job_limit) : job_limit;
    if (!limit)
        return;
    if (total_bytes)
        *total_bytes = rs_min(*total_bytes, limit);
    if (!free_bytes)
        return;
    rs_charge_follow_pools(device);
    charged = atomic_load(&rs_limit_account(device)->charged_bytes);
    live = charged - rs_min(idle_bytes, charged);
    *free_bytes = rs_min(*free_bytes, limit - rs_min(live, limit));
    if (job_limit)
        *free_bytes = rs_min(*free_bytes, job_limit - rs_min(live + others, job_limit));
}

/* Adds up the idle memory of the device's stacks, which counts as free; stacks of pinned memory are
 * left out. *charged_bytes grows by all of it, since it is charged against the limit wherever it
 * lies. *idle_bytes grows by the part in device memory, which is at most what the context holds
 * there: a stack over managed memory holds nothing there. */
static void sum_idle(CUdevice device, size_t *idle_bytes, size_t *charged_bytes)
{
    RS_EACH_STACK(walk) {
        const struct rs_stack *stack = walk.stack;
        if (stack->environment.device != device || stack->kind == RS_KIND_PINNED)
            continue;
        *charged_bytes += rs_mr_idle_bytes_best(walk.mr);
        if (stack->kind == RS_KIND_DEVICE)
            *idle_bytes +=
                rs_min(rs_mr_idle_bytes_best(walk.mr),
                       atomic_load_explicit(&stack->context->account.held_bytes[RS_MEMORY_DEVICE],
                                            memory_order_relaxed));
    }
}

/* Corrects the driver's answer about the memory of the current context's device: idle memory of
 * stacks counts as free, and a limit counts as the device's total memory. */
static void correct_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    size_t idle_bytes = 0, charged_bytes = 0;
    CUdevice device;

    if (rs_mode_now() != RS_MODE_SERVE || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return;
    sum_idle(device, &idle_bytes, &charged_bytes);
    *free_bytes = rs_min(*free_bytes + idle_bytes, *total_bytes);
    observe_limit(device, charged_bytes, free_bytes, total_bytes);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    size_t free_seen, total_seen;
    CUresult result;

    if (rs_mode_serving())
        rs_poll_commands_in_request(); /* so that the answer shows a limit that `rmmshim limit` has
                                          just changed */
    result = RS_FORWARD(cuMemGetInfo_v2, (&free_seen, &total_seen));
    if (result != CUDA_SUCCESS)
        return result;
    correct_memory_info(&free_seen, &total_seen);
    if (free_bytes)
        *free_bytes = free_seen;
    if (total_bytes)
        *total_bytes = total_seen;
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *total_bytes, CUdevice device)
{
    CUresult result = RS_FORWARD(cuDeviceTotalMem_v2, (total_bytes, device));

    if (result == CUDA_SUCCESS && rs_mode_now() == RS_MODE_SERVE)
        observe_limit(device, 0, NULL, total_bytes);
    return result;
}

/* ---- attributes of an address ---- */

static CUresult ask_attribute(CUpointer_attribute attribute, CUdeviceptr address, unsigned *value)
{
    return rs_driver.cuPointerGetAttribute(value, attribute, address);
}

/* True when the driver itself reports the address as device memory and not as managed. */
static bool is_plain(CUdeviceptr address)
{
    unsigned type = 0, managed = 1;

    return ask_attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, &type) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE &&
           ask_attribute(CU_POINTER_ATTRIBUTE_IS_MANAGED, address, &managed) == CUDA_SUCCESS &&
           !managed;
}

static bool is_known_to_driver(CUdeviceptr address)
{
    unsigned type;

    return ask_attribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, &type) == CUDA_SUCCESS;
}

/* True for a block that must answer as device memory although it may lie elsewhere
 * (RMM_MEMORY_TYPE=requested). */
static bool is_as_requested(const struct rs_introspection *introspection)
{
    return introspection->what == RS_INTROSPECTED_BLOCK &&
           introspection->block.kind == RS_KIND_DEVICE &&
           rs_config.memory_type == RS_MEMORY_TYPE_REQUESTED;
}

/* Answers about a block in memory that the driver does not know (`system`): fills in *data as the
 * driver would for device memory. Returns CUDA_ERROR_INVALID_VALUE for an attribute that device
 * memory does not have. */
static CUresult answer_unknown(const struct rs_introspection *introspection, CUdeviceptr address,
                               CUpointer_attribute attribute, void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = introspection->block.device;
        break;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned *)data = 1;
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned *)data = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
        break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        *(unsigned *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_CONTEXT:              /* `correct` fills it in */
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: /* the answers to CONTEXT, ALLOWED_HANDLE_TYPES
                                                       and MEMPOOL_HANDLE have 8 bytes each */
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        memset(data, 0, sizeof(uint64_t));
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: /* `correct` fills in these */
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Puts the block's own values in place of the driver's answer at *data, which describes the
 * driver's allocation around the block. A block of another process may be mapped here in several
 * pieces (ipc/pieces.h): the driver reports no context for them, and another id for each. */
static void correct(const struct rs_introspection *introspection, CUpointer_attribute attribute,
                    void *data)
{
    const struct rs_block_view *block = &introspection->block;
    bool is_opened = introspection->what == RS_INTROSPECTED_OPENED;
    uint64_t id;

    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = block->address;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = block->size_bytes;
        break;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        /* for mapped memory (`virtual`) the driver reports no context */
        if (!*(CUcontext *)data)
            *(CUcontext *)data = is_opened ? rs_import_context(block->address) : block->context;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        id = is_opened ? rs_driver_allocation_id(block->address) : rs_block_id(block->address);
        if (id)
            *(unsigned long long *)data = id;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        if (!is_opened)
            *(unsigned *)data =
                rs_sync_memops_get(block->address, block->kind, *(const unsigned *)data != 0);
        break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: /* asking for tokens sets SYNC_MEMOPS in the driver */
        if (!is_opened)
            rs_sync_memops_note(block->address);
        break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        /* Reports none: a piece of mapped memory can be shared (ipc/pieces.h), but holds other
         * blocks too. */
        *(unsigned long long *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        if (is_as_requested(introspection))
            *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        if (is_as_requested(introspection))
            *(unsigned *)data = 0;
        break;
    default:
        break;
    }
}

/* Corrects the driver's answer to cuPointerGetAttribute about an address inside the block:
 * `result`, and *data on success.  Returns the result for the program. */
static CUresult correct_answer(const struct rs_introspection *introspection, CUdeviceptr address,
                               CUpointer_attribute attribute, CUresult result, void *data)
{
    if (!data)
        return result;
    if (result == CUDA_ERROR_INVALID_VALUE && is_as_requested(introspection) &&
        !is_known_to_driver(address))
        result = answer_unknown(introspection, address, attribute, data);
    else if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER &&
             is_as_requested(introspection) && !is_plain(address))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        correct(introspection, attribute, data);
    return result;
}

/* Corrects the answers of cuPointerGetAttributes, each as correct_answer does. Unlike
 * cuPointerGetAttribute, that function succeeds when an attribute has no answer, and answers with
 * zero for it. */
static void correct_answers(const struct rs_introspection *introspection, CUdeviceptr address,
                            unsigned count, const CUpointer_attribute *attributes, void **data)
{
    bool unknown = is_as_requested(introspection) && !is_known_to_driver(address);

    for (unsigned i = 0; i < count; i++)
        if (correct_answer(introspection, address, attributes[i],
                           unknown ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS,
                           data[i]) != CUDA_SUCCESS &&
            attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            *(void **)data[i] = NULL;
}

/* Corrects the answers about freed memory. The driver was asked about the unknown address `asked`
 * in place of the program's `address`. It takes `asked` for ordinary host memory, and answers
 * HOST_POINTER and DEVICE_POINTER with it. */
static void answer_instead(CUdeviceptr asked, CUdeviceptr address, unsigned count,
                           const CUpointer_attribute *attributes, void **data)
{
    for (unsigned i = 0; i < count; i++)
        if ((attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
             attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) &&
            data[i] && *(CUdeviceptr *)data[i] == asked)
            *(CUdeviceptr *)data[i] = address;
}

static bool is_corrected(const struct rs_introspection *introspection)
{
    return introspection->what == RS_INTROSPECTED_BLOCK ||
           introspection->what == RS_INTROSPECTED_OPENED;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size_bytes, CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        return CUDA_ERROR_NOT_FOUND;
    result = RS_FORWARD(cuMemGetAddressRange_v2, (base, size_bytes, address));
    if (!is_corrected(&introspection) ||
        (result != CUDA_SUCCESS &&
         result != CUDA_ERROR_NOT_FOUND)) /* the driver answers NOT_FOUND for memory that it does
                                             not know (`system`) */
        return result;
    if (base)
        *base = introspection.block.address;
    if (size_bytes)
        *size_bytes = introspection.block.size_bytes;
    return CUDA_SUCCESS;
}

/* Returns the address about which to ask the driver: `address`, or an unknown one in place of
 * memory of a stack that must not look like host memory. */
static void *visible_host(void *address)
{
    struct rs_introspection introspection = rs_introspect((CUdeviceptr)(uintptr_t)address);

    if (introspection.what == RS_INTROSPECTED_FREED || is_as_requested(&introspection))
        return (void *)(uintptr_t)rs_introspect_unknown_address();
    return address;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUresult result;

    if (introspection.what == RS_INTROSPECTED_FREED)
        address = rs_introspect_unknown_address();
    result = RS_FORWARD(cuPointerGetAttribute, (data, attribute, address));
    if (is_corrected(&introspection))
        result = correct_answer(&introspection, address, attribute, result, data);
    return result;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr address)
{
    struct rs_introspection introspection = rs_introspect(address);
    CUdeviceptr asked =
        introspection.what == RS_INTROSPECTED_FREED ? rs_introspect_unknown_address() : address;
    CUresult result = RS_FORWARD(cuPointerGetAttributes, (count, attributes, data, asked));

    if (result == CUDA_SUCCESS && is_corrected(&introspection))
        correct_answers(&introspection, address, count, attributes, data);
    if (result == CUDA_SUCCESS && introspection.what == RS_INTROSPECTED_FREED)
        answer_instead(asked, address, count, attributes, data);
    return result;
}

CUresult cuMemHostGetFlags(unsigned *flags, void *address)
{
    return RS_FORWARD(cuMemHostGetFlags, (flags, visible_host(address)));
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags)
{
    return RS_FORWARD(cuMemHostGetDevicePointer_v2, (device, visible_host(address), flags));
}
