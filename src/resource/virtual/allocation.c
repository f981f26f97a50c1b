/* SPDX-License-Identifier: Apache-2.0 */
/* The path of an allocation through `virtual`: attempts to find a block, or to grow by one, while
 * other threads do the same. */
#include "resource/virtual/virtual.h"

#include "base/lock.h"
#include "base/request.h"

enum { GROWTH_WAIT_MS = 20, SETTLE_WAIT_MS = 500, ROUNDS_MAX = 64 };

/* The state of one request. */
struct asking {
    struct rs_block_request request;
    bool is_alone;  /* this request set vm->is_reserved */
    bool disturbed; /* its last attempt to grow was disturbed (rs_virtual_grow) */
};

/* Waits for the end of another thread's driver calls, for a bounded time: they may wait for the
 * GPU, and the GPU for this thread. */
static void wait_until_settled(struct rs_virtual *vm, long milliseconds)
{
    uint64_t until_ns = rs_clock_ns() + (uint64_t)milliseconds * 1000000;

    (void)rs_condition_wait_until_ns(&vm->settled, &vm->lock, until_ns);
}

/* True when another thread's growth was to leave room for this request, and this thread waited for
 * it. */
static bool waited_for_growth(struct rs_virtual *vm, const struct rs_block_request *request)
{
    if (vm->ahead_bytes < request->rounded_bytes)
        return false;
    vm->ahead_bytes -= request->rounded_bytes;
    wait_until_settled(vm, GROWTH_WAIT_MS);
    return true;
}

/* Waits for other threads' driver calls, or for work of the GPU.  False when the request's patience
 * is over. */
static bool wait_patiently(struct rs_virtual *vm, long milliseconds)
{
    if (rs_request_patience_ns() == 0)
        return false;
    wait_until_settled(vm, milliseconds);
    return true;
}

/* Takes any block that fits: one in a bad place or misaligned is better than a refusal. */
static bool take_at_last(struct rs_virtual *vm, struct rs_block_request *request,
                         struct rs_allocation *out)
{
    if (!rs_record_slab_reserve(&vm->blocks.records))
        return false;
    if (rs_virtual_take(vm, request, out))
        return true;
    request->any_alignment = true;
    return rs_blocks_take(&vm->blocks, request, out);
}

/* Waits until no access is being changed and no other thread has reserved all memory.  False when
 * this takes too long. */
static bool wait_until_free_to_grow(struct rs_virtual *vm, struct asking *asking)
{
    while (vm->is_still || (vm->is_reserved && !asking->is_alone))
        if (!wait_patiently(vm, SETTLE_WAIT_MS))
            return false;
    return true;
}

/* Grows.  Without `reuse` above, work may still use free memory: then new memory serves the
 * request, and where there is none, free memory once that work is done.  This wait ends also when
 * the end of the work cannot be known: an old driver has no fences, and a capture may be this very
 * thread's. */
static CUresult grow(struct rs_virtual *vm, struct asking *asking)
{
    CUresult result, moved;

    do {
        moved = rs_virtual_grow(vm, &asking->request, RS_VIRTUAL_HELD_AND_NEW, &asking->disturbed);
        if (vm->ended || (moved != CUDA_ERROR_NOT_READY && moved != CUDA_ERROR_NOT_SUPPORTED))
            return moved;
        if (!wait_until_free_to_grow(vm, asking))
            return CUDA_ERROR_OUT_OF_MEMORY;
        result = rs_virtual_grow(vm, &asking->request, RS_VIRTUAL_NEW, &asking->disturbed);
    } while (result == CUDA_ERROR_OUT_OF_MEMORY && moved == CUDA_ERROR_NOT_READY && !vm->ended &&
             wait_patiently(vm, GROWTH_WAIT_MS) && wait_until_free_to_grow(vm, asking));
    return result;
}

/* Makes one attempt to serve the request.  Called and left with the lock held. */
static CUresult attempt(struct rs_virtual *vm, struct asking *asking, struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    asking->disturbed = false;
    if (!wait_until_free_to_grow(vm, asking))
        return result;
    rs_virtual_loosen(vm);
    if (!wait_until_free_to_grow(vm, asking))
        return result;
    if (vm->ended)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!rs_record_slab_reserve(&vm->blocks.records))
        return result;
    if (rs_virtual_take(vm, &asking->request, out))
        return CUDA_SUCCESS;
    result = grow(vm, asking);
    if (vm->ended)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    /* after a failure too, as other threads may have freed */
    return take_at_last(vm, &asking->request, out) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Waits until all other threads have ended their calls, and lets none begin one: of two threads
 * that move memory, each may hold granules that the other lacks, and then both would fail.  False
 * when this takes too long. */
static bool be_alone(struct rs_virtual *vm, struct asking *asking)
{
    if (!wait_until_free_to_grow(vm, asking))
        return false;
    RS_ASSERT(!vm->is_still && (!vm->is_reserved || asking->is_alone));
    vm->is_reserved = asking->is_alone = true;
    while (vm->calls > 0)
        if (!wait_patiently(vm, SETTLE_WAIT_MS))
            return false;
    return true;
}

/* Finds a block, growing as needed.  A refusal counts only when no other thread's call had memory
 * in hand.  The rounds are bounded, as trims are calls too, and begin at any time.  Called and left
 * with the lock held. */
static CUresult allocate_locked(struct rs_virtual *vm, struct asking *asking,
                                struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (rs_record_slab_reserve(&vm->blocks.records) && !vm->ended) {
        if (rs_virtual_take(vm, &asking->request, out))
            return CUDA_SUCCESS;
        (void)waited_for_growth(vm, &asking->request);
    }
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        result = attempt(vm, asking, out);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || !asking->disturbed || !be_alone(vm, asking))
            break;
    }
    if (asking->is_alone) {
        vm->is_reserved = asking->is_alone = false;
        pthread_cond_broadcast(&vm->settled);
    }
    return result;
}

/* As allocate_locked, and again after the device's other stacks gave back idle memory.  Called and
 * left with the lock held. */
static CUresult allocate_or_reclaim(struct rs_virtual *vm, struct asking *asking,
                                    enum rs_effort effort, struct rs_allocation *out)
{
    size_t rounded_bytes = asking->request.rounded_bytes;
    size_t granules = (rounded_bytes - 1) / vm->granule_bytes + 1;
    const struct rs_environment *environment = vm->environment;
    struct rs_refusal refusal = {.size_bytes = rounded_bytes};
    CUresult result;
    bool again;

    do {
        refusal.releases = rs_account_releases(environment->account);
        result = allocate_locked(vm, asking, out);
        if (result != CUDA_ERROR_OUT_OF_MEMORY || !environment->reclaim ||
            rs_effort_is_ahead(effort) || granules > vm->maximum_granules - vm->charged_granules)
            return result; /* past this resource's own maximum, which no other stack can help with
                            */
        rs_request_note_short();
        rs_mutex_unlock(&vm->lock);
        again = environment->reclaim(environment, &refusal, !environment->frees_are_ready);
        rs_mutex_lock(&vm->lock);
    } while (again);
    return result;
}

static CUresult allocate(struct rs_virtual *vm, size_t size_bytes, enum rs_effort effort,
                         struct rs_allocation *out)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct asking asking = {.is_alone = false};
    bool is_a_size = rs_block_request_init(&asking.request, size_bytes, RS_BLOCK_ALIGNMENT, false);

    RS_ASSERT(size_bytes > 0);
    rs_request_begin();
    rs_mutex_lock(&vm->lock);
    if (is_a_size && (asking.request.rounded_bytes - 1) / vm->granule_bytes < vm->maximum_granules)
        result = rs_effort_result_of_driver(allocate_or_reclaim(vm, &asking, effort, out));
    vm->allocations += result == CUDA_SUCCESS;
    vm->failures += result != CUDA_SUCCESS;
    RS_ASSERT(!asking.is_alone);
    RS_ASSERT_SLOW(vm->ended || rs_virtual_check(vm));
    rs_virtual_leave(vm);
    rs_request_end();
    return result;
}

/* Serves the request from held memory.  Called and left with the lock held. */
static bool take_held(struct rs_virtual *vm, const struct rs_block_request *request,
                      struct rs_allocation *out)
{
    bool disturbed;

    if (vm->ended || !rs_record_slab_reserve(&vm->blocks.records))
        return false;
    if (rs_virtual_take(vm, request, out))
        return true;
    if (vm->is_still || vm->is_reserved ||
        rs_virtual_grow(vm, request, RS_VIRTUAL_HELD, &disturbed) != CUDA_SUCCESS || vm->ended)
        return false;
    return rs_record_slab_reserve(&vm->blocks.records) && rs_virtual_take(vm, request, out);
}

static CUresult allocate_held(struct rs_virtual *vm, size_t size_bytes, struct rs_allocation *out)
{
    struct rs_block_request request;
    bool taken;

    if (!rs_block_request_init(&request, size_bytes, RS_BLOCK_ALIGNMENT, false))
        return CUDA_ERROR_NOT_READY;
    rs_mutex_lock(&vm->lock);
    taken = take_held(vm, &request, out);
    vm->allocations += taken;
    rs_virtual_leave(vm);
    return taken ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

/* No work uses free blocks any more, so they serve every stream (reuse.c). */
CUresult rs_virtual_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                             enum rs_effort effort, struct rs_allocation *out)
{
    (void)stream;
    return rs_effort_is_held(effort) ? allocate_held(rs_virtual_of(mr), size_bytes, out)
                                     : allocate(rs_virtual_of(mr), size_bytes, effort, out);
}
