/* SPDX-License-Identifier: Apache-2.0 */
#include "introspect/introspect.h"

#include "base/check.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/limit.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "introspect/sync_memops.h"
#include "ipc/import.h"

#include <stdatomic.h>
#include <sys/mman.h>

struct idle {
    CUdevice device;
    size_t bytes;         /* idle bytes of the device's memory */
    size_t charged_bytes; /* idle bytes that are charged against the device's limit */
};

static void add_idle(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct idle *idle = data;
    size_t held = atomic_load_explicit(&stack->context->account.held_bytes[RS_MEMORY_DEVICE],
                                       memory_order_relaxed);

    if (stack->kind != RS_KIND_PINNED && stack->environment.device == idle->device)
        idle->charged_bytes += rs_mr_idle_bytes_best(mr);
    /* No more than the context holds of the device: a stack over managed memory holds nothing
     * there. */
    if (stack->kind == RS_KIND_DEVICE && stack->environment.device == idle->device)
        idle->bytes += rs_min(rs_mr_idle_bytes_best(mr), held);
}

/* Applies the limit to a device's total memory, and to *free_bytes (of the current context's
 * device) unless NULL. idle_bytes: charged bytes that stacks hold idle. */
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

void rs_introspect_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    struct idle idle = {0, 0, 0};

    if (rs_mode_now() != RS_MODE_SERVE || rs_driver.cuCtxGetDevice(&idle.device) != CUDA_SUCCESS)
        return;
    rs_context_each_stack(add_idle, &idle);
    *free_bytes = rs_min(*free_bytes + idle.bytes, *total_bytes);
    observe_limit(idle.device, idle.charged_bytes, free_bytes, total_bytes);
}

void rs_introspect_total_memory(CUdevice device, size_t *total_bytes)
{
    if (rs_mode_now() == RS_MODE_SERVE)
        observe_limit(device, 0, NULL, total_bytes);
}

struct rs_introspection rs_introspect_if(bool serving, CUdeviceptr address)
{
    struct rs_introspection introspection = {.what = RS_INTROSPECTED_FOREIGN};
    struct rs_block_view view;

    switch (rs_import_find(address, &introspection.address, &introspection.size_bytes)) {
    case RS_IMPORTED_BLOCK:
        introspection.what = RS_INTROSPECTED_OPENED;
        return introspection;
    case RS_IMPORTED_OUTSIDE:
        introspection.what = RS_INTROSPECTED_FREED;
        return introspection;
    case RS_IMPORTED_NOT:
        break;
    }
    if (!serving)
        return introspection;
    if (rs_block_find(address, &view))
        return (struct rs_introspection){.what = RS_INTROSPECTED_BLOCK,
                                         .address = view.address,
                                         .size_bytes = view.size_bytes,
                                         .context = view.context,
                                         .device = view.device,
                                         .whole = view.whole,
                                         .kind = view.kind};
    if (rs_block_is_our_memory(address))
        introspection.what = RS_INTROSPECTED_FREED;
    return introspection;
}

struct rs_introspection rs_introspect(CUdeviceptr address)
{
    return rs_introspect_if(rs_mode_serving(), address);
}

static CUresult ask(CUpointer_attribute attribute, CUdeviceptr address, unsigned *value)
{
    return rs_driver.cuPointerGetAttribute(value, attribute, address);
}

/* True when the driver itself reports the address as device memory and not as managed. */
static bool is_plain(CUdeviceptr address)
{
    unsigned type = 0, managed = 1;

    return ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, &type) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE &&
           ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, address, &managed) == CUDA_SUCCESS && !managed;
}

static bool is_known(CUdeviceptr address)
{
    unsigned type;

    return ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, &type) == CUDA_SUCCESS;
}

bool rs_introspect_as_requested(const struct rs_introspection *introspection)
{
    return introspection->what == RS_INTROSPECTED_BLOCK && introspection->kind == RS_KIND_DEVICE &&
           rs_config.memory_type == RS_MEMORY_TYPE_REQUESTED;
}

/* Fills in *data as the driver would for device memory, about a block of memory that the driver
 * does not know (`system`).  CUDA_ERROR_INVALID_VALUE for an attribute without such an answer. */
static CUresult answer_unknown(const struct rs_introspection *introspection, CUdeviceptr address,
                               CUpointer_attribute attribute, void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = NULL; /* correct() fills it in */
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = address;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = introspection->device;
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
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = NULL;
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: /* for correct() */
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

/* Corrects RANGE_START_ADDR and RANGE_SIZE; false for another attribute. */
static bool correct_range(const struct rs_introspection *introspection,
                          CUpointer_attribute attribute, void *data)
{
    if (attribute == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        *(CUdeviceptr *)data = introspection->address;
    else if (attribute == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        *(size_t *)data = introspection->size_bytes;
    else
        return false;
    return true;
}

static void correct(const struct rs_introspection *introspection, CUpointer_attribute attribute,
                    void *data)
{
    uint64_t id;

    if (correct_range(introspection, attribute, data))
        return;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        /* the driver reports no context for mapped memory (`virtual`) */
        if (!*(CUcontext *)data)
            *(CUcontext *)data = introspection->context;
        break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        id = rs_block_id(introspection->address);
        if (id)
            *(unsigned long long *)data = id;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(unsigned *)data = rs_sync_memops_get(introspection->address, introspection->kind,
                                               *(const unsigned *)data != 0);
        break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: /* asking for tokens sets SYNC_MEMOPS in the driver */
        rs_sync_memops_note(introspection->address);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        if (rs_introspect_as_requested(introspection))
            *(unsigned *)data = CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        if (rs_introspect_as_requested(introspection))
            *(unsigned *)data = 0;
        break;
    default:
        break;
    }
}

CUresult rs_introspect_attribute(const struct rs_introspection *introspection, CUdeviceptr address,
                                 CUpointer_attribute attribute, CUresult result, void *data)
{
    if (!data)
        return result;
    if (introspection->what == RS_INTROSPECTED_OPENED) {
        if (result == CUDA_SUCCESS)
            (void)correct_range(introspection, attribute, data);
        return result;
    }
    if (result == CUDA_ERROR_INVALID_VALUE && rs_introspect_as_requested(introspection) &&
        !is_known(address))
        result = answer_unknown(introspection, address, attribute, data);
    else if (result == CUDA_SUCCESS && attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER &&
             rs_introspect_as_requested(introspection) && !is_plain(address))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        correct(introspection, attribute, data);
    return result;
}

void rs_introspect_attributes(const struct rs_introspection *introspection, CUdeviceptr address,
                              unsigned count, const CUpointer_attribute *attributes, void **data)
{
    bool unknown = rs_introspect_as_requested(introspection) && !is_known(address);

    for (unsigned i = 0; i < count; i++)
        if (rs_introspect_attribute(introspection, address, attributes[i],
                                    unknown ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS,
                                    data[i]) != CUDA_SUCCESS &&
            attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            *(void **)data[i] = NULL;
}

void rs_introspect_instead(CUdeviceptr asked, CUdeviceptr address, unsigned count,
                           const CUpointer_attribute *attributes, void **data)
{
    for (unsigned i = 0; i < count; i++)
        if ((attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER ||
             attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) &&
            data[i] && *(CUdeviceptr *)data[i] == asked)
            *(CUdeviceptr *)data[i] = address;
}

CUdeviceptr rs_introspect_unknown_address(void)
{
    static _Atomic(void *) page;
    void *known = atomic_load(&page), *made;

    if (known)
        return (CUdeviceptr)(uintptr_t)known;
    made = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return 1; /* an address in the zero page is never allocated either */
    if (!atomic_compare_exchange_strong(&page, &known, made)) {
        munmap(made, 4096);
        made = known;
    }
    return (CUdeviceptr)(uintptr_t)made;
}
