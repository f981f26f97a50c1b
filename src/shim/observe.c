/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/observe.h"

#include "base/arithmetic.h"
#include "driver/driver.h"
#include "shim/block.h"
#include "shim/context.h"
#include "shim/ipc_import.h"
#include "shim/life.h"
#include "shim/limit.h"

#include <stdatomic.h>
#include <sys/mman.h>

struct idle {
    CUdevice device;
    size_t bytes;         /* of the device */
    size_t charged_bytes; /* and of what counts as the device's against a limit */
};

static void add_idle(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct idle *idle = data;
    size_t held = atomic_load_explicit(&stack->context->account.held_bytes[RS_MEMORY_DEVICE],
                                       memory_order_relaxed);

    if (stack->kind != RS_KIND_PINNED && stack->place.device == idle->device)
        idle->charged_bytes += rs_mr_idle_bytes_best(mr);
    /* A stack over managed memory holds nothing of the device. */
    if (stack->kind == RS_KIND_DEVICE && stack->place.device == idle->device)
        idle->bytes += rs_min(rs_mr_idle_bytes_best(mr), held);
}

void rs_observe_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    struct idle idle = {0, 0, 0};

    if (rs_life() != RS_MODE_SERVE || rs_driver.cuCtxGetDevice(&idle.device) != CUDA_SUCCESS)
        return;
    rs_context_each_stack(add_idle, &idle);
    *free_bytes = rs_min(*free_bytes + idle.bytes, *total_bytes);
    rs_limit_observe(idle.device, idle.charged_bytes, free_bytes, total_bytes);
}

void rs_observe_total_memory(CUdevice device, size_t *total_bytes)
{
    if (rs_life() == RS_MODE_SERVE)
        rs_limit_observe(device, 0, NULL, total_bytes);
}

struct rs_observation rs_observe(CUdeviceptr address)
{
    struct rs_observation observation = {.what = RS_OBSERVED_FOREIGN};
    struct rs_block_view view;

    switch (rs_import_find(address, &observation.address, &observation.size_bytes)) {
    case RS_IMPORTED_BLOCK:
        observation.what = RS_OBSERVED_OPENED;
        return observation;
    case RS_IMPORTED_OUTSIDE:
        observation.what = RS_OBSERVED_FREED;
        return observation;
    case RS_IMPORTED_NOT:
        break;
    }
    if (!rs_life_serving())
        return observation;
    if (rs_block_find(address, &view))
        return (struct rs_observation){RS_OBSERVED_BLOCK, view.address, view.size_bytes,
                                       view.context,      view.whole,   view.kind};
    if (rs_block_is_our_memory(address))
        observation.what = RS_OBSERVED_FREED;
    return observation;
}

void rs_observe_attribute(const struct rs_observation *observation, CUpointer_attribute attribute,
                          void *data)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = observation->address;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = observation->size_bytes;
        break;
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        /* what is mapped belongs to no context, in the driver's eyes */
        if (!*(CUcontext *)data)
            *(CUcontext *)data = observation->context;
        break;
    default:
        break;
    }
}

CUdeviceptr rs_observe_unknown_address(void)
{
    static _Atomic(void *) page;
    void *known = atomic_load(&page), *made;

    if (known)
        return (CUdeviceptr)(uintptr_t)known;
    made = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return 1; /* in the zero page, which nobody allocates either */
    if (!atomic_compare_exchange_strong(&page, &known, made)) {
        munmap(made, 4096);
        made = known;
    }
    return (CUdeviceptr)(uintptr_t)made;
}
