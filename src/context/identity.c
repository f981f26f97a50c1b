/* SPDX-License-Identifier: Apache-2.0 */
/* Identifies the context behind a handle, whether it has ended, and which context owns the memory
 * allocated while it is current. */
#include "context/identity.h"

#include "base/check.h"
#include "driver/driver.h"
#include "driver/fence.h"

unsigned long long rs_context_id_of(CUcontext handle)
{
    bool is_faulty;

    return rs_context_ask_id(handle, &is_faulty);
}

unsigned long long rs_context_ask_id(CUcontext handle, bool *is_faulty)
{
    unsigned long long id = 0;
    CUresult result =
        rs_driver.cuCtxGetId ? rs_driver.cuCtxGetId(handle, &id) : CUDA_ERROR_NOT_SUPPORTED;

    *is_faulty = rs_is_fault(result);
    return result == CUDA_SUCCESS ? id : 0;
}

bool rs_context_is_gone(struct rs_witness witness)
{
    unsigned long long id = 0;
    CUresult result = CUDA_SUCCESS;

    if (witness.address)
        result =
            rs_driver.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, witness.address);
    return result == CUDA_ERROR_INVALID_VALUE || (result == CUDA_SUCCESS && id != witness.id);
}

bool rs_context_is_gone_there(struct rs_witness witness, CUcontext handle)
{
    CUresult result;
    bool entered, gone;

    if (!witness.address)
        return false;
    entered = rs_driver_context_enter(handle, &result);
    gone = result == CUDA_SUCCESS && rs_context_is_gone(witness);
    rs_driver_context_leave(entered);
    return gone;
}

bool rs_context_is_there(const struct rs_context *context)
{
    unsigned long long id;
    unsigned flags;
    int active = 1;
    bool is_faulty;

    if (context->primary && rs_driver.cuDevicePrimaryCtxGetState &&
        rs_driver.cuDevicePrimaryCtxGetState(context->device, &flags, &active) == CUDA_SUCCESS &&
        !active)
        return false;
    if (!context->id)
        return !rs_context_is_gone(context->witness);
    id = rs_context_ask_id(context->handle, &is_faulty);
    return is_faulty || id == context->id || (id == 0 && context->primary);
}

bool rs_context_is_at(const struct rs_context *context, CUdeviceptr address)
{
    CUcontext owner = NULL;

    return rs_driver.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address) ==
               CUDA_SUCCESS &&
           owner == context->handle && rs_context_id_of(owner) == context->id;
}

CUcontext rs_context_memory_owner(CUcontext handle, CUdeviceptr *block)
{
    CUcontext owner = handle;

    *block = 0;
    if (rs_driver.cuMemAlloc_v2(block, RS_SENTINEL_BYTES) != CUDA_SUCCESS) {
        *block = 0;
        return handle;
    }
    if (rs_driver.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, *block) !=
            CUDA_SUCCESS ||
        !owner)
        owner = handle;
    return owner;
}

void rs_context_keep_probe(struct rs_context *context, CUdeviceptr block)
{
    CUstream stream;
    CUresult result;
    bool entered;

    if (block && !rs_driver.cuCtxGetId && !context->witness.address) {
        context->witness.id = rs_driver_allocation_id(block);
        context->witness.address = context->witness.id ? block : 0;
    }
    RS_ASSERT(!context->witness.address || context->witness.id);
    if (!block || block == context->witness.address || rs_sentinel_add(&context->sentinel, block))
        return;
    stream = rs_own_stream(&context->own_stream, context->handle);
    if (!stream || !rs_driver.cuMemFreeAsync)
        return; /* the 512 bytes stay until the context ends */
    entered = rs_driver_context_enter(context->handle, &result);
    if (result == CUDA_SUCCESS && rs_driver.cuMemFreeAsync(block, stream) == CUDA_SUCCESS)
        (void)rs_own_stream_settle(stream, 0);
    rs_driver_context_leave(entered);
}

bool rs_context_owns_memory(struct rs_context *context)
{
    CUdeviceptr block = 0;

    if (context->owns_memory)
        return true;
    context->owns_memory = rs_context_memory_owner(context->handle, &block) == context->handle;
    rs_context_keep_probe(context, block);
    return context->owns_memory;
}
