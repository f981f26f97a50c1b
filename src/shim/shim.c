/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/shim.h"

#include "base/check.h"
#include "base/thread.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/context.h"
#include "context/fault.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "driver/stream.h"
#include "introspect/managed.h"
#include "introspect/sync_memops.h"
#include "ipc/export.h"
#include "report/out_of_memory.h"
#include "resource/adaptor/poison.h"
#include "shim/commands.h"

enum { PITCH_BYTES = 512 }; /* the driver rounds a row up to it (MEASURED.md) */

/* Refused for good: by the driver, or by a limit, after all that nobody uses was given back. */
RS_COLD static CUresult note_failure(const struct rs_stack *stack, size_t size_bytes,
                                     CUresult result)
{
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = rs_context_fault_or(result);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        rs_oom_refused(stack->environment.device, stack->kind, size_bytes);
    return result;
}

/* Inline: the common case of an allocation, and of a free, makes no call before the call of the
 * stack's topmost resource. */
RS_HOT_INLINE CUresult allocate_from(struct rs_stack *stack, size_t size_bytes, CUstream stream,
                                     unsigned object, CUdeviceptr *address)
{
    struct rs_mr *mr = atomic_load_explicit(&stack->mr, memory_order_relaxed);
    struct rs_allocation allocation;
    CUresult result;

    rs_shim_attend_in_request();
    result = rs_mr_allocate(mr, size_bytes, stream, &allocation);
    if (RS_UNLIKELY(result != CUDA_SUCCESS)) {
        return note_failure(stack, size_bytes, result);
    }
    if (RS_UNLIKELY(!rs_block_enter(stack, &allocation, object))) {
        (void)rs_mr_deallocate(mr, &allocation, NULL);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *address = allocation.address;
    return CUDA_SUCCESS;
}

/* The stack to allocate from, or NULL; then *answered tells whether *result is the answer. */
static struct rs_stack *serving_stack(enum rs_mode mode, unsigned hook_group, enum rs_kind kind,
                                      unsigned host_flags, bool *answered, CUresult *result)
{
    struct rs_stack *stack = NULL;
    bool denied = mode == RS_MODE_DENY;

    if (mode == RS_MODE_SERVE && (rs_config.hook_groups & hook_group) && rs_driver_ready(true))
        stack = rs_context_stack(kind, host_flags, &denied);
    *answered = denied;
    if (denied)
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    return stack;
}

/* ---- the request that the runtime layer was refused ---- */

/* The request that was refused by the stack rs_thread.refused. */
static __thread struct {
    size_t size_bytes;
    CUresult result;
    uint64_t left; /* blocks that the thread had freed before it */
} refusal;

/* Returns false: the request was not served. */
RS_COLD static bool note_refusal(const struct rs_stack *stack, size_t size_bytes, CUresult result)
{
    rs_thread.refused = stack;
    refusal.size_bytes = size_bytes;
    refusal.result = result;
    refusal.left = rs_block_count_left_here(stack->counter);
    return false;
}

void rs_shim_forget_refusal(void)
{
    rs_thread.refused = NULL;
}

/* True once for the request that was just refused, unless the thread has freed a block since: an
 * interposer between the layers may have made room. */
static bool is_refused(const struct rs_stack *stack, size_t size_bytes, CUresult *result)
{
    bool same = rs_thread.refused == stack && refusal.size_bytes == size_bytes &&
                refusal.left == rs_block_count_left_here(stack->counter);

    rs_shim_forget_refusal();
    if (same)
        *result = refusal.result;
    return same;
}

/* ---- device memory ---- */

/* The first allocation in a context, and every unusual one. */
RS_COLD static bool allocate_slowly(bool serving, size_t size_bytes, unsigned object,
                                    CUdeviceptr *address, CUresult *result)
{
    struct rs_stack *stack;
    bool answered;

    if (!address || size_bytes == 0)
        return false; /* the driver's own error */
    stack = serving_stack(serving ? RS_MODE_SERVE : rs_mode_slow(), RS_HOOK_GROUP_DEVICE,
                          RS_KIND_DEVICE, 0, &answered, result);
    if (!stack)
        return answered;
    if (!is_refused(stack, size_bytes, result))
        *result = allocate_from(stack, size_bytes, NULL, object, address);
    return true;
}

RS_HOT bool rs_shim_allocate(size_t size_bytes, unsigned object, CUdeviceptr *address,
                             CUresult *result)
{
    struct rs_stack *stack;

    if (RS_UNLIKELY(!rs_mode_serving()))
        return allocate_slowly(false, size_bytes, object, address, result);
    if (RS_UNLIKELY(~rs_config.hook_groups & RS_HOOK_GROUP_DEVICE))
        return allocate_slowly(true, size_bytes, object, address, result);
    stack = rs_context_stack_before(RS_STACK_DEVICE);
    if (RS_UNLIKELY(!stack || !address || size_bytes == 0 || rs_thread.refused))
        return allocate_slowly(true, size_bytes, object, address, result);
    *result = allocate_from(stack, size_bytes, NULL, object, address);
    return true;
}

bool rs_shim_allocate_in_order(enum rs_mode mode, unsigned hook_group, size_t size_bytes,
                               CUstream stream, unsigned object, CUdeviceptr *address,
                               CUresult *result)
{
    bool answered;
    struct rs_stack *stack = serving_stack(mode, hook_group, RS_KIND_DEVICE, 0, &answered, result);

    if (!stack)
        return answered;
    if (hook_group == RS_HOOK_GROUP_ASYNC && stack->frees_wait)
        return false; /* a free in the order of a stream must not wait */
    *result = allocate_from(stack, size_bytes, stream, object, address);
    return true;
}

bool rs_shim_allocate_pitch(size_t width_bytes, size_t height, unsigned element_bytes,
                            unsigned object, CUdeviceptr *address, size_t *pitch_bytes,
                            CUresult *result)
{
    struct rs_stack *stack;
    size_t row_bytes, size_bytes;
    bool answered;

    if (!address || !pitch_bytes || width_bytes == 0 || height == 0 ||
        (element_bytes != 4 && element_bytes != 8 && element_bytes != 16) ||
        !rs_round_up(width_bytes, PITCH_BYTES, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, height, &size_bytes))
        return false; /* the driver's own error */
    stack =
        serving_stack(rs_mode_now(), RS_HOOK_GROUP_DEVICE, RS_KIND_DEVICE, 0, &answered, result);
    if (!stack)
        return answered;
    *result = allocate_from(stack, size_bytes, NULL, object, address);
    if (*result == CUDA_SUCCESS)
        *pitch_bytes = row_bytes;
    return true;
}

enum {
    DEVICE_KINDS = 1 << RS_KIND_DEVICE | 1 << RS_KIND_MANAGED, /* of cuMemFree */
    HOST_KINDS = 1 << RS_KIND_PINNED,                          /* of cuMemFreeHost */
};

/* The free failed, by a sticky error of the device for example: the block stays allocated, as it
 * would without the library.  A record for it is there: it was given up a moment ago. */
RS_COLD static CUresult keep_block(const struct rs_taken_block *taken, CUresult result)
{
    if (rs_block_enter_again(taken->stack, &taken->allocation))
        rs_block_note_advice(taken->allocation.address, &taken->advice);
    return result;
}

/* Frees a block that is exported or was given advice. */
RS_COLD static CUresult free_with_history(struct rs_taken_block *taken, CUstream stream)
{
    struct rs_mr *mr = atomic_load_explicit(&taken->stack->mr, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;

    if (taken->exported != RS_EXPORTED_NOT && rs_export_end(taken))
        return CUDA_SUCCESS; /* another process has the block open: its close frees it */
    if (taken->advice.advised || taken->advice.device_accesses) {
        rs_sync_memops_freed(taken);
        result = rs_managed_unadvise(taken);
    }
    if (result == CUDA_SUCCESS)
        result = rs_mr_deallocate(mr, &taken->allocation, stream);
    if (taken->exported == RS_EXPORTED_NATIVE && result == CUDA_SUCCESS)
        rs_export_freed(taken);
    return result;
}

RS_HOT_INLINE CUresult free_block(struct rs_taken_block *taken, CUstream stream)
{
    struct rs_mr *mr = atomic_load_explicit(&taken->stack->mr, memory_order_relaxed);
    CUresult result;

    rs_shim_attend();
    if (RS_UNLIKELY(RS_DIFFER(taken->exported, RS_EXPORTED_NOT) | taken->advice.advised |
                    taken->advice.device_accesses))
        result = free_with_history(taken, stream);
    else
        result = rs_mr_deallocate(mr, &taken->allocation, stream);
    return RS_LIKELY(result == CUDA_SUCCESS) ? CUDA_SUCCESS : keep_block(taken, result);
}

static void find_poisoned(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct rs_poisoned *block = data;
    CUdeviceptr address = block->address;

    (void)stack;
    if (!block->size_bytes)
        (void)rs_poison_find(mr, address, block);
}

/* `poison` still knows a block that the program has freed. */
RS_COLD static void say_freed_twice(CUdeviceptr address)
{
    struct rs_poisoned block = {.address = address};
    struct rs_block_view live;

    if (rs_block_find(address, &live))
        return;
    rs_context_each_stack(find_poisoned, &block);
    if (block.size_bytes)
        rs_poison_say_freed_twice(&block);
}

/* A call may be ending the block's context.  The driver answers for an address at which no block
 * begins, unless it lies in memory of the library. */
RS_COLD static bool free_otherwise(CUdeviceptr address, unsigned kinds, CUresult *result)
{
    struct rs_taken_block taken;

    if (rs_block_take_doubted(address, kinds, &taken)) {
        *result = free_block(&taken, NULL);
        return true;
    }
    if (!rs_block_is_our_memory(address))
        return false;
    if (atomic_load_explicit(&rs_poison_count, memory_order_relaxed))
        say_freed_twice(address);
    *result = CUDA_ERROR_INVALID_VALUE;
    return true;
}

/* No block could be taken.  Where the context of a block that begins at the address, or lately
 * began there, is faulty, the free fails as the driver's own does, and the block stays allocated.
 * When the driver has forgotten the error, the block is freed. */
RS_COLD static bool free_unusual(CUdeviceptr address, unsigned kinds, CUresult *result)
{
    struct rs_block_record *block = rs_block_see(address);
    struct rs_taken_block taken;

    if (!rs_context_any_fault())
        return free_otherwise(address, kinds, result);
    if (block && rs_block_alive(block) == RS_CONTEXT_FAULTY) {
        *result = rs_context_ask_fault(rs_block_stack(block)->context);
        if (*result != CUDA_SUCCESS)
            return true;
    }
    /* Another thread may have been told meanwhile that the driver has forgotten the error. */
    if (!rs_block_take(address, kinds, &taken))
        return free_otherwise(address, kinds, result);
    *result = free_block(&taken, NULL);
    return true;
}

RS_HOT_INLINE bool free_kind(CUdeviceptr address, unsigned kinds, CUresult *result)
{
    struct rs_taken_block taken;

    if (RS_UNLIKELY(address == 0))
        return false;
    if (RS_UNLIKELY(!rs_block_take(address, kinds, &taken)))
        return free_unusual(address, kinds, result);
    *result = free_block(&taken, NULL);
    return true;
}

static CUresult free_in_order(struct rs_taken_block *taken, CUstream stream)
{
    struct rs_stack *stack = taken->stack;
    CUresult result = CUDA_SUCCESS;
    bool entered = false;

    if (rs_context_current() != stack->context) {
        stream = rs_stream_from(stack->environment.device, stack->context->handle, stream);
        entered = rs_driver_context_enter(stack->context->handle, &result);
    }
    if (result == CUDA_SUCCESS)
        result = free_block(taken, stream);
    else
        (void)rs_block_enter_again(stack, &taken->allocation);
    rs_driver_context_leave(entered);
    return result;
}

bool rs_shim_free_in_order(CUdeviceptr address, CUstream stream, CUresult *result)
{
    struct rs_taken_block taken;
    bool ordered;

    ordered = !rs_block_has_other_streams(address);
    if (!rs_block_take(address, 1 << RS_KIND_DEVICE, &taken))
        return free_kind(address, DEVICE_KINDS, result);
    *result = free_in_order(&taken, ordered ? stream : NULL);
    return true;
}

RS_HOT bool rs_shim_free(CUdeviceptr address, CUresult *result)
{
    return free_kind(address, DEVICE_KINDS, result);
}

bool rs_shim_allocate_managed(size_t size_bytes, unsigned flags, unsigned object,
                              CUdeviceptr *address, CUresult *result)
{
    struct rs_stack *stack;
    bool answered;

    if (!address || size_bytes == 0 || flags != CU_MEM_ATTACH_GLOBAL)
        return false; /* the driver's own answer */
    stack =
        serving_stack(rs_mode_now(), RS_HOOK_GROUP_MANAGED, RS_KIND_MANAGED, 0, &answered, result);
    if (!stack)
        return answered;
    if (!is_refused(stack, size_bytes, result))
        *result = allocate_from(stack, size_bytes, NULL, object, address);
    return true;
}

bool rs_shim_allocate_host(size_t size_bytes, unsigned flags, unsigned object, void **address,
                           CUresult *result)
{
    struct rs_stack *stack;
    CUdeviceptr allocated = 0;
    bool answered;

    if (!address || size_bytes == 0 || flags >= RS_HOST_FLAG_SETS)
        return false; /* the driver's own answer */
    stack = serving_stack(rs_mode_now(), RS_HOOK_GROUP_PINNED, RS_KIND_PINNED, flags, &answered,
                          result);
    if (!stack)
        return answered;
    *result = allocate_from(stack, size_bytes, NULL, object, &allocated);
    if (*result == CUDA_SUCCESS)
        *address = (void *)(uintptr_t)allocated;
    return true;
}

bool rs_shim_free_host(void *address, CUresult *result)
{
    return free_kind((CUdeviceptr)(uintptr_t)address, HOST_KINDS, result);
}

RS_HOT bool rs_shim_allocate_at_once(unsigned which_stack, size_t size_bytes, unsigned object,
                                     CUdeviceptr *address)
{
    struct rs_stack *stack = rs_context_stack_before(which_stack);
    CUresult result;

    if (RS_UNLIKELY(!stack) && rs_driver_ready(false))
        stack = rs_context_made_stack(which_stack);
    if (RS_UNLIKELY(!stack || size_bytes == 0))
        return false;
    result = allocate_from(stack, size_bytes, NULL, object, address);
    return RS_LIKELY(result == CUDA_SUCCESS) || note_refusal(stack, size_bytes, result);
}

RS_HOT bool rs_shim_free_at_once(CUdeviceptr address)
{
    /* Looked up first: while the look-up waits for memory, the processor fetches the driver's
     * instructions. */
    struct rs_block_record *block = rs_block_see(address);
    struct rs_taken_block taken;
    CUcontext current = NULL;

    /* A block proves that the driver is there.  Without a current context the call is forwarded:
     * the runtime makes one current. */
    return RS_LIKELY(block) &&
           RS_LIKELY(rs_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current) &&
           RS_LIKELY(rs_block_take_seen(block, address, DEVICE_KINDS, &taken)) &&
           RS_LIKELY(free_block(&taken, NULL) == CUDA_SUCCESS);
}
