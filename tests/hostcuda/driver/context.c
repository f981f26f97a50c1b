/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/context.h"

#include "driver/capture.h"
#include "driver/config.h"
#include "driver/device.h"
#include "driver/event.h"
#include "driver/handle.h"
#include "driver/ipc.h"
#include "driver/memory.h"
#include "driver/stream.h"

#include <stdlib.h>

#define STACK_DEPTH 256

/* Created contexts are told apart from a later context at the same address by their id. */
static __thread struct {
    struct hc_ctx *ctx;
    unsigned long long id;
} stack[STACK_DEPTH];
static __thread unsigned depth;

static unsigned long long last_id;
static struct hc_ctx *unused; /* a new context gets the handle of the latest destroyed one */

static CUresult check(const struct hc_ctx *ctx)
{
    if (!ctx->is_active)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return hc_ctx_error(ctx);
}

CUresult hc_ctx_current(struct hc_ctx **out)
{
    if (!depth || !stack[depth - 1].ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct hc_ctx *ctx = stack[depth - 1].ctx;
    if (!ctx->is_primary && ctx->id != stack[depth - 1].id)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = ctx;
    return check(ctx);
}

CUresult hc_ctx_of(CUcontext handle, struct hc_ctx **out)
{
    if (!handle)
        return hc_ctx_current(out);
    if (!hc_handle_is(handle, HC_HANDLE_CONTEXT))
        return CUDA_ERROR_INVALID_CONTEXT;
    *out = (struct hc_ctx *)handle;
    return check(*out);
}

struct hc_ctx *hc_ctx_top(void)
{
    return depth ? stack[depth - 1].ctx : NULL;
}

CUresult hc_ctx_push(struct hc_ctx *ctx)
{
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth].ctx = ctx;
    stack[depth].id = ctx ? ctx->id : 0;
    depth++;
    return CUDA_SUCCESS;
}

CUresult hc_ctx_pop(struct hc_ctx **ctx)
{
    if (!depth || !stack[depth - 1].ctx)
        return CUDA_ERROR_INVALID_CONTEXT;
    *ctx = stack[--depth].ctx;
    return CUDA_SUCCESS;
}

void hc_ctx_set(struct hc_ctx *ctx)
{
    if (depth)
        depth--;
    if (ctx)
        hc_ctx_push(ctx);
}

static CUresult activate(struct hc_ctx *ctx, int device, unsigned flags, struct hc_ctx *owner)
{
    struct hc_region *memory = &hc_device_at(device)->memory;
    size_t room = memory->capacity_bytes - memory->used_bytes;
    if (!owner && room < hc_config.context_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    ctx->device = device;
    ctx->flags = flags;
    ctx->id = ++last_id;
    ctx->error = CUDA_SUCCESS;
    ctx->owner = owner ? owner : ctx;
    ctx->is_active = true;
    ctx->peers = 0;
    ctx->api_version = 3020;
    ctx->limits[CU_LIMIT_STACK_SIZE] = 1024;
    ctx->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = (size_t)7 << 20;
    ctx->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = (size_t)8 << 20;
    ctx->null_stream = hc_stream_create(ctx, HC_STREAM_NULL, CU_STREAM_DEFAULT, 0);
    if (!ctx->null_stream) {
        ctx->is_active = false;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (owner) {
        ctx->next = owner->greens;
        owner->greens = ctx;
    } else {
        memory->used_bytes += hc_config.context_bytes;
    }
    return CUDA_SUCCESS;
}

CUresult hc_ctx_create(int device, unsigned flags, struct hc_ctx *owner, struct hc_ctx **out)
{
    struct hc_ctx *ctx = unused;
    if (ctx)
        unused = ctx->next;
    else if (!(ctx = calloc(1, sizeof(*ctx))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    ctx->next = NULL;
    CUresult result = activate(ctx, device, flags, owner);
    if (result) {
        ctx->next = unused;
        unused = ctx;
        return result;
    }
    hc_handle_add(ctx, HC_HANDLE_CONTEXT);
    *out = ctx;
    return CUDA_SUCCESS;
}

static void leave_owner(struct hc_ctx *green)
{
    struct hc_ctx **link = &green->owner->greens;
    while (*link && *link != green)
        link = &(*link)->next;
    if (*link)
        *link = green->next;
}

void hc_ctx_destroy(struct hc_ctx *ctx)
{
    while (ctx->greens)
        hc_ctx_destroy(ctx->greens);
    hc_stream_wait_all(ctx);
    if (!ctx->is_active)
        return; /* another thread was faster */
    ctx->is_active = false;
    hc_stream_drop_all(ctx);
    hc_event_drop_all(ctx);
    hc_ipc_close_all(ctx);
    hc_memory_free_all(ctx);
    if (ctx->owner != ctx) {
        leave_owner(ctx);
    } else {
        hc_memory_settle(ctx);
        hc_device_at(ctx->device)->memory.used_bytes -= hc_config.context_bytes;
    }
    hc_device_at(ctx->device)->memory.used_bytes -= ctx->module_bytes;
    ctx->module_bytes = 0;
    if (ctx->is_primary)
        return;
    hc_handle_remove(ctx);
    ctx->next = unused;
    unused = ctx;
}

struct hc_ctx *hc_ctx_primary(int device)
{
    struct hc_ctx *ctx = hc_device_at(device)->primary;
    return ctx && ctx->is_active ? ctx : NULL;
}

CUresult hc_ctx_primary_retain(int ordinal, struct hc_ctx **out)
{
    struct hc_device *device = hc_device_at(ordinal);
    if (!device->primary) {
        device->primary = calloc(1, sizeof(*device->primary));
        if (!device->primary)
            return CUDA_ERROR_OUT_OF_MEMORY;
        device->primary->is_primary = true;
        hc_handle_add(device->primary, HC_HANDLE_CONTEXT);
    }
    struct hc_ctx *ctx = device->primary;
    if (!ctx->is_active) {
        CUresult result = activate(ctx, ordinal, ctx->flags, NULL);
        if (result)
            return result;
    }
    device->primary_count++;
    *out = ctx;
    return CUDA_SUCCESS;
}

void hc_ctx_fail(struct hc_ctx *ctx, CUresult error)
{
    if (!ctx->owner->error)
        ctx->owner->error = error;
}

CUresult hc_ctx_error(const struct hc_ctx *ctx)
{
    return ctx->owner->error;
}
