/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/shim.h"

#include "base/arithmetic.h"
#include "driver/driver.h"
#include "shim/block.h"
#include "shim/context.h"
#include "shim/life.h"

enum { PITCH_BYTES = 512 }; /* what the driver rounds a row up to (cuda-measured.md) */

static CUresult allocate_from(struct rs_context *context, size_t size_bytes, CUdeviceptr *address)
{
    struct rs_allocation allocation;
    CUresult result = rs_mr_allocate(context->stack, size_bytes, NULL, &allocation);

    if (result != CUDA_SUCCESS)
        return result;
    if (!rs_block_enter(context, &allocation)) {
        (void)rs_mr_deallocate(context->stack, &allocation, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = allocation.address;
    return CUDA_SUCCESS;
}

/* The context to allocate from, or NULL with *answered telling whether *result is the answer. */
static struct rs_context *serving_context(bool *answered, CUresult *result)
{
    enum rs_mode mode = rs_life();
    struct rs_context *context = NULL;
    bool denied = mode == RS_MODE_DENY;

    if (mode == RS_MODE_SERVE && (rs_config.hook_groups & RS_HOOK_GROUP_DEVICE) &&
        rs_driver_ready(true))
        context = rs_context_for_allocation(&denied);
    *answered = denied;
    if (denied)
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    return context;
}

bool rs_shim_allocate(size_t size_bytes, CUdeviceptr *address, CUresult *result)
{
    struct rs_context *context;
    bool answered;

    if (!address || size_bytes == 0)
        return false; /* the driver's own error */
    context = serving_context(&answered, result);
    if (!context)
        return answered;
    *result = allocate_from(context, size_bytes, address);
    return true;
}

bool rs_shim_allocate_pitch(size_t width_bytes, size_t height, unsigned element_bytes,
                            CUdeviceptr *address, size_t *pitch_bytes, CUresult *result)
{
    struct rs_context *context;
    size_t row_bytes, size_bytes;
    bool answered;

    if (!address || !pitch_bytes || width_bytes == 0 || height == 0 ||
        (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) ||
        !rs_round_up(width_bytes, PITCH_BYTES, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, height, &size_bytes))
        return false; /* the driver's own error */
    context = serving_context(&answered, result);
    if (!context)
        return answered;
    *result = allocate_from(context, size_bytes, address);
    if (*result == CUDA_SUCCESS)
        *pitch_bytes = row_bytes;
    return true;
}

static CUresult free_block(struct rs_context *context, const struct rs_allocation *allocation)
{
    CUresult result = rs_mr_deallocate(context->stack, allocation, NULL);

    /* A sticky error of the device, say: the block is still allocated, as it would be without us.
     * There was room for its record a moment ago. */
    if (result != CUDA_SUCCESS)
        (void)rs_block_enter(context, allocation);
    return result;
}

bool rs_shim_free(CUdeviceptr address, CUresult *result)
{
    struct rs_allocation allocation;
    struct rs_context *context;

    if (address == 0 || !rs_life_serving())
        return false;
    if (rs_block_take(address, &allocation, &context)) {
        *result = free_block(context, &allocation);
        return true;
    }
    if (!rs_block_is_our_memory(address))
        return false;
    *result = CUDA_ERROR_INVALID_VALUE;
    return true;
}

bool rs_shim_allocate_at_once(size_t size_bytes, CUdeviceptr *address)
{
    struct rs_context *context;

    if (size_bytes == 0 || rs_life() != RS_MODE_SERVE || !rs_driver_ready(false))
        return false;
    context = rs_context_if_known();
    return context && allocate_from(context, size_bytes, address) == CUDA_SUCCESS;
}

bool rs_shim_free_at_once(CUdeviceptr address)
{
    struct rs_allocation allocation;
    struct rs_context *context;
    CUcontext current = NULL;

    /* Without a current context the runtime makes one current: that is its business. */
    return address != 0 && rs_life_serving() &&
           rs_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current &&
           rs_block_take(address, &allocation, &context) &&
           free_block(context, &allocation) == CUDA_SUCCESS;
}
