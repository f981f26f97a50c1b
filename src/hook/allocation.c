/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the allocations that stacks serve, and of their frees: device memory, managed memory and
 * pinned host memory. A call that no stack serves is forwarded, and charged against the limit
 * unless it is for pinned memory. */
#include "hook/allocation.h"

#include "base/check.h"
#include "base/thread.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/context.h"
#include "context/end.h"
#include "context/table.h"
#include "driver/driver.h"
#include "driver/stream.h"
#include "hook/caller.h"
#include "hook/charged.h"
#include "hook/hook.h"
#include "introspect/introspect.h"
#include "ipc/export.h"
#include "ipc/import.h"
#include "report/out_of_memory.h"
#include "report/publish.h"
#include "resource/adaptor/poison.h"
#include "shim/commands.h"

#include <stdio.h>

enum {
    PITCH_BYTES = 512, /* the driver rounds a row up to a multiple of it (MEASURED.md) */
    DEVICE_KINDS = 1 << RS_KIND_DEVICE | 1 << RS_KIND_MANAGED, /* the kinds that cuMemFree frees */
    HOST_KINDS = 1 << RS_KIND_PINNED, /* the kind that cuMemFreeHost frees */
};

/* ---- allocation ---- */

/* Called when a request has failed for good: out of memory, even after all unused memory was given
 * back, or with another error. Counts and reports an out-of-memory error, unless the context's work
 * has failed: then its error takes the place of out-of-memory. Returns the result for the
 * program. */
RS_COLD static CUresult note_failure(const struct rs_stack *stack, size_t size_bytes,
                                     CUresult result)
{
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        result = rs_context_fault_or(result);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        rs_oom_refused(stack->environment.device, stack->kind, size_bytes);
    return result;
}

/* Allocates a block from a stack. Inline, as free_block is, so that in the common case nothing is
 * called before the stack's topmost resource. */
RS_HOT_INLINE CUresult allocate_from(struct rs_stack *stack, size_t size_bytes, CUstream stream,
                                     unsigned object, CUdeviceptr *address)
{
    struct rs_mr *mr = atomic_load_explicit(&stack->mr, memory_order_relaxed);
    struct rs_allocation allocation;
    CUresult result;

    rs_poll_commands_in_request();
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

/* This thread's request that the stack rs_thread.refused has refused. */
static __thread struct {
    size_t size_bytes;
    CUresult result;
    uint64_t left; /* the number of blocks that the thread had freed before the request */
} refusal;

/* Remembers the refused request.  Returns false, since it was not served. */
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

/* True if this is the request that the stack has just refused for rs_serve_fast, and the thread has
 * freed no block since. If it has, an interposer between the runtime and the driver layer may have
 * made room, and the request is tried again. Either way the refusal is forgotten. */
static bool is_refused(const struct rs_stack *stack, size_t size_bytes, CUresult *result)
{
    bool same = refusal.size_bytes == size_bytes &&
                refusal.left == rs_block_count_left_here(stack->counter);

    rs_shim_forget_refusal();
    if (same)
        *result = refusal.result;
    return same;
}

bool rs_shim_allocate(enum rs_mode mode, unsigned hook_group, unsigned host_flags,
                      size_t size_bytes, CUstream stream, unsigned object, CUdeviceptr *address,
                      CUresult *result)
{
    enum rs_kind kind = hook_group == RS_HOOK_GROUP_MANAGED  ? RS_KIND_MANAGED
                        : hook_group == RS_HOOK_GROUP_PINNED ? RS_KIND_PINNED
                                                             : RS_KIND_DEVICE;
    bool denied = mode == RS_MODE_DENY;
    struct rs_stack *stack = NULL;

    if (mode == RS_MODE_SERVE && (rs_config.hook_groups & hook_group) && rs_driver_ready(true))
        stack = rs_context_stack(kind, host_flags, &denied);
    if (denied)
        *result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!stack)
        return denied;
    if (hook_group == RS_HOOK_GROUP_ASYNC && stack->frees_wait)
        return false; /* a free in the order of a stream must not wait, and this stack's frees do */
    if (rs_thread.refused != stack || !is_refused(stack, size_bytes, result))
        *result = allocate_from(stack, size_bytes, stream, object, address);
    return true;
}

RS_HOT bool rs_serve_fast(unsigned which_stack, size_t size_bytes, unsigned object,
                          CUdeviceptr *address)
{
    struct rs_stack *stack = rs_stack_cached(which_stack);
    CUresult result;

    if (RS_UNLIKELY(!stack) && rs_driver_ready(false))
        stack = rs_stack_if_made(which_stack);
    if (RS_UNLIKELY(!stack || size_bytes == 0))
        return false;
    result = allocate_from(stack, size_bytes, NULL, object, address);
    return RS_LIKELY(result == CUDA_SUCCESS) || note_refusal(stack, size_bytes, result);
}

/* ---- deallocation ---- */

/* Called when a free failed, for example by a sticky error of the device: the block stays
 * allocated, as it would without the library. Host memory for its record is hardly ever lacking,
 * since the free has just given a record back. */
RS_COLD static CUresult keep_block(const struct rs_taken_block *taken, CUresult result)
{
    if (rs_block_restore(taken->stack, &taken->allocation))
        rs_block_note_advice(taken->allocation.address, &taken->advice);
    return result;
}

static CUresult unadvise(const struct rs_taken_block *block, CUmem_advise advice, int where)
{
    return rs_placement_advise(block->stack->environment.context, block->allocation.address,
                               block->allocation.size_bytes, advice, where);
}

/* Restores the default advice of a managed block (hook/guard.c).  The driver calls do not wait for
 * the device, and work that still uses the block reads the same bytes.  Returns the driver's error
 * when it refuses; the block must then not be reused. */
static CUresult unadvise_all(const struct rs_taken_block *block)
{
    const struct rs_advice *advice = &block->advice;
    CUresult result = CUDA_SUCCESS;

    if (advice->advised & RS_ADVISED_READ_MOSTLY)
        result = unadvise(block, CU_MEM_ADVISE_UNSET_READ_MOSTLY, RS_PLACEMENT_HOST);
    if (result == CUDA_SUCCESS && advice->advised & RS_ADVISED_LOCATION)
        result = unadvise(block, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, RS_PLACEMENT_HOST);
    if (result == CUDA_SUCCESS && advice->advised & RS_ADVISED_HOST_ACCESS)
        result = unadvise(block, CU_MEM_ADVISE_UNSET_ACCESSED_BY, RS_PLACEMENT_HOST);
    for (uint64_t left = advice->device_accesses; left && result == CUDA_SUCCESS; left &= left - 1)
        result = unadvise(block, CU_MEM_ADVISE_UNSET_ACCESSED_BY, __builtin_ctzll(left));
    return result;
}

/* Frees a block that is exported or was given advice. */
RS_COLD static CUresult free_with_history(struct rs_taken_block *taken, CUstream stream)
{
    struct rs_mr *mr = atomic_load_explicit(&taken->stack->mr, memory_order_relaxed);
    CUresult result = CUDA_SUCCESS;
    struct rs_poisoned block;

    if (taken->exported != RS_EXPORTED_NOT && rs_export_end(taken)) {
        /* The block is freed when the other process closes it. */
        if (atomic_load_explicit(&rs_poison_count, memory_order_relaxed) &&
            rs_poison_find(mr, taken->allocation.address, &block))
            rs_poison_say_freed(&block, "was freed while another process has it open");
        return CUDA_SUCCESS;
    }
    if (taken->advice.advised || taken->advice.device_accesses) {
        rs_sync_memops_freed(taken);
        result = unadvise_all(taken);
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

    rs_poll_commands();
    if (RS_UNLIKELY(RS_DIFFER(taken->exported, RS_EXPORTED_NOT) | taken->advice.advised |
                    taken->advice.device_accesses))
        result = free_with_history(taken, stream);
    else
        result = rs_mr_deallocate(mr, &taken->allocation, stream);
    return RS_LIKELY(result == CUDA_SUCCESS) ? CUDA_SUCCESS : keep_block(taken, result);
}

/* Reports a wrong free of the block that begins at the address, if `poison` knows the block. */
RS_COLD static void say_wrong_free(CUdeviceptr address, const char *how)
{
    struct rs_poisoned block = {.address = address};

    RS_EACH_STACK(walk)
        if (!block.size_bytes)
            (void)rs_poison_find(walk.mr, address, &block);
    if (block.size_bytes)
        rs_poison_say_freed(&block, how);
}

/* Reports why a free of the library's memory is refused: no live block begins at the address, or
 * only one of a kind that the call does not free. */
RS_COLD static void say_refused_free(CUdeviceptr address)
{
    struct rs_block_view live;
    char how[64];

    if (!rs_block_find(address, &live)) {
        say_wrong_free(address, "was freed twice");
        return;
    }
    snprintf(how, sizeof(how), "was freed with an address inside it, byte %zu",
             (size_t)(address - live.address));
    if (address != live.address) /* else it is memory of another kind */
        say_wrong_free(live.address, how);
}

/* Frees a block whose context another call may be ending. Answers a wrong free of the library's
 * memory with the driver's error. Returns false for an address outside the library's memory, about
 * which the driver is then asked. */
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
        say_refused_free(address);
    *result = CUDA_ERROR_INVALID_VALUE;
    return true;
}

/* Called when no block could be claimed for a free. If a block begins at the address, or did so
 * until now, and the work of its context has failed, the free fails as the driver's own does, and
 * the block stays allocated. The block is freed if the driver no longer reports that error. */
RS_COLD static bool free_unusual(CUdeviceptr address, unsigned kinds, CUresult *result)
{
    struct rs_block_record *block = rs_block_lookup(address);
    const struct rs_stack *stack = block ? rs_block_stack(block) : NULL;
    struct rs_taken_block taken;

    if (!rs_context_any_fault())
        return free_otherwise(address, kinds, result);
    if (block && rs_block_alive_in(stack) == RS_CONTEXT_FAULTY && rs_block_is_at(block, address)) {
        *result = rs_context_ask_fault(stack->context);
        if (*result != CUDA_SUCCESS)
            return true;
    }
    /* Another thread may have found meanwhile that the driver no longer reports the error, and
     * freed the block. */
    if (!rs_block_claim(address, kinds, &taken))
        return free_otherwise(address, kinds, result);
    *result = free_block(&taken, NULL);
    return true;
}

RS_HOT_INLINE bool free_kind(CUdeviceptr address, unsigned kinds, CUresult *result)
{
    struct rs_taken_block taken;

    if (RS_UNLIKELY(address == 0))
        return false;
    if (RS_UNLIKELY(!rs_block_claim(address, kinds, &taken)))
        return free_unusual(address, kinds, result);
    *result = free_block(&taken, NULL);
    return true;
}

static CUresult free_in_order(struct rs_taken_block *taken, CUstream stream)
{
    struct rs_stack *stack = taken->stack;
    CUresult result = CUDA_SUCCESS;
    bool entered = false;

    if (rs_context_current(false) != stack->context) {
        stream = rs_stream_from(stack->environment.device, stack->context->handle, stream);
        entered = rs_driver_context_enter(stack->context->handle, &result);
    }
    if (result == CUDA_SUCCESS)
        result = free_block(taken, stream);
    else
        (void)rs_block_restore(stack, &taken->allocation);
    rs_driver_context_leave(entered);
    return result;
}

bool rs_shim_free_in_order(CUdeviceptr address, CUstream stream, CUresult *result)
{
    const struct rs_block_record *block = rs_block_beginning_at(address);
    bool ordered = !block || !block->has_other_streams;
    struct rs_taken_block taken;

    if (!rs_block_claim(address, 1 << RS_KIND_DEVICE, &taken))
        return free_kind(address, DEVICE_KINDS, result);
    *result = free_in_order(&taken, ordered ? stream : NULL);
    return true;
}

RS_HOT bool rs_free_fast(CUdeviceptr address)
{
    /* The block is looked up before the driver is called: while the look-up waits for memory, the
     * processor fetches the driver's instructions. */
    struct rs_block_record *block = rs_block_lookup(address);
    struct rs_taken_block taken;
    CUcontext current = NULL;

    /* If there is a block, the driver has been loaded. Without a current context the call is
     * forwarded, since the runtime makes one current. */
    return RS_LIKELY(block) &&
           RS_LIKELY(rs_driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current) &&
           RS_LIKELY(rs_block_claim_found(block, address, DEVICE_KINDS, &taken)) &&
           RS_LIKELY(free_block(&taken, NULL) == CUDA_SUCCESS);
}

/* ---- hooks of device memory ---- */

/* Counts an allocation that no stack serves and that is forwarded. */
RS_COLD static void note_forwarded(enum rs_kind kind)
{
    if (rs_mode_serving())
        rs_publish_forwarded(kind);
}

static CUresult undo_allocate(unsigned long long address)
{
    return RS_FORWARD(cuMemFree_v2, (address));
}

/* Begins a forwarded call that allocates device or managed memory. `is_odd`: the driver will
 * probably refuse the call as invalid. */
RS_COLD static struct rs_charged_call begin_forwarded(enum rs_kind kind, size_t size_bytes,
                                                      CUdeviceptr *address, bool is_odd)
{
    note_forwarded(kind);
    return rs_charged_begin(RS_NO_DEVICE,
                            kind == RS_KIND_MANAGED ? RS_PATH_MANAGED : RS_PATH_DRIVER, size_bytes,
                            address, is_odd ? undo_allocate : NULL);
}

/* Serves, or forwards, the first allocation in a context and every unusual one. */
RS_COLD static CUresult allocate_device_slowly(CUdeviceptr *address, size_t size_bytes,
                                               unsigned object)
{
    CUresult result;

    if (address && size_bytes > 0 &&
        rs_shim_allocate(rs_mode_now(), RS_HOOK_GROUP_DEVICE, 0, size_bytes, NULL, object, address,
                         &result))
        return result;
    return RS_CHARGED(begin_forwarded(RS_KIND_DEVICE, size_bytes, address, false),
                      RS_FORWARD(cuMemAlloc_v2, (address, size_bytes)));
}

RS_HOT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size_bytes)
{
    unsigned object = RS_CALLER_OBJECT();
    struct rs_stack *stack;

    if (RS_UNLIKELY(!rs_mode_serving()) ||
        RS_UNLIKELY(~rs_config.hook_groups & RS_HOOK_GROUP_DEVICE))
        return allocate_device_slowly(address, size_bytes, object);
    stack = rs_stack_cached(RS_STACK_DEVICE);
    if (RS_UNLIKELY(!stack || !address || size_bytes == 0 || rs_thread.refused))
        return allocate_device_slowly(address, size_bytes, object);
    return allocate_from(stack, size_bytes, NULL, object, address);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch_bytes, size_t width_bytes,
                            size_t height, unsigned element_bytes)
{
    bool is_odd = !pitch_bytes || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16);
    size_t row_bytes, size_bytes;
    CUresult result;

    if (!rs_round_up(width_bytes, PITCH_BYTES, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, height, &size_bytes))
        size_bytes = 0; /* the program gets the driver's own error */
    if (address && !is_odd && size_bytes > 0 &&
        rs_shim_allocate(rs_mode_now(), RS_HOOK_GROUP_DEVICE, 0, size_bytes, NULL,
                         RS_CALLER_OBJECT(), address, &result)) {
        if (result == CUDA_SUCCESS)
            *pitch_bytes = row_bytes;
        return result;
    }
    return RS_CHARGED(
        begin_forwarded(RS_KIND_DEVICE, size_bytes, address, is_odd),
        RS_FORWARD(cuMemAllocPitch_v2, (address, pitch_bytes, width_bytes, height, element_bytes)));
}

__attribute__((noinline)) static CUresult forward_free(CUdeviceptr address, bool serving)
{
    struct rs_charged *record;

    if (rs_import_has(address))
        return CUDA_ERROR_INVALID_VALUE;
    record = rs_charge_free_begin(serving, RS_KEYS_ADDRESSES, address);
    if (serving && address)
        rs_publish_forwarded_free(RS_KIND_DEVICE);
    return rs_charge_free_end(record, RS_FORWARD(cuMemFree_v2, (address)));
}

RS_HOT CUresult cuMemFree_v2(CUdeviceptr address)
{
    CUresult result;

    if (RS_UNLIKELY(!rs_mode_serving()))
        return forward_free(address, false);
    return RS_LIKELY(free_kind(address, DEVICE_KINDS, &result)) ? result
                                                                : forward_free(address, true);
}

/* ---- hooks of managed memory ---- */

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size_bytes, unsigned flags)
{
    bool is_odd = flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST;
    CUresult result;

    if (address && size_bytes > 0 && flags == CU_MEM_ATTACH_GLOBAL &&
        rs_shim_allocate(rs_mode_now(), RS_HOOK_GROUP_MANAGED, 0, size_bytes, NULL,
                         RS_CALLER_OBJECT(), address, &result))
        return result;
    return RS_CHARGED(begin_forwarded(RS_KIND_MANAGED, size_bytes, address, is_odd),
                      RS_FORWARD(cuMemAllocManaged, (address, size_bytes, flags)));
}

/* ---- hooks of pinned host memory ---- */

/* Allocates pinned memory from a stack. Returns false when the call must be forwarded. */
static bool allocate_host(void **address, size_t size_bytes, unsigned flags, unsigned object,
                          CUresult *result)
{
    CUdeviceptr allocated = 0;

    if (!address || size_bytes == 0 || flags >= RS_HOST_FLAG_SETS ||
        !rs_shim_allocate(rs_mode_now(), RS_HOOK_GROUP_PINNED, flags, size_bytes, NULL, object,
                          &allocated, result)) {
        note_forwarded(RS_KIND_PINNED);
        return false;
    }
    if (*result == CUDA_SUCCESS)
        *address = (void *)(uintptr_t)allocated;
    return true;
}

CUresult cuMemHostAlloc(void **address, size_t size_bytes, unsigned flags)
{
    CUresult result;

    if (allocate_host(address, size_bytes, flags, RS_CALLER_OBJECT(), &result))
        return result;
    return RS_AGAIN_HOST(size_bytes, RS_FORWARD(cuMemHostAlloc, (address, size_bytes, flags)));
}

CUresult cuMemAllocHost_v2(void **address, size_t size_bytes)
{
    CUresult result;

    if (allocate_host(address, size_bytes, 0, RS_CALLER_OBJECT(), &result))
        return result;
    return RS_AGAIN_HOST(size_bytes, RS_FORWARD(cuMemAllocHost_v2, (address, size_bytes)));
}

CUresult cuMemFreeHost(void *address)
{
    CUresult result;

    if (rs_mode_serving() && free_kind((CUdeviceptr)(uintptr_t)address, HOST_KINDS, &result))
        return result;
    if (rs_mode_serving() && address)
        rs_publish_forwarded_free(RS_KIND_PINNED);
    return RS_FORWARD(cuMemFreeHost, (address));
}
