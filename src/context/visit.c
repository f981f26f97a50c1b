/* SPDX-License-Identifier: Apache-2.0 */
/* Operations over the stacks of all contexts: trims, waits, counts, and access from other devices.
 */
#include "context/visit.h"

#include "base/check.h"
#include "base/lock.h"
#include "base/request.h"
#include "config/mode.h"
#include "context/end.h"
#include "context/table.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "shim/wiring.h"

void rs_context_each_stack(void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                           void *data)
{
    RS_EACH_STACK(walk)
        visit(data, walk.stack, walk.mr);
}

void rs_context_each_stack_ever(enum rs_kind kind, int device,
                                void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr),
                                void (*gone)(void *data, const struct rs_report *report),
                                void *data)
{
    if (!rs_contexts_lock_bounded())
        return;
    for (struct rs_stack_walk walk = {0}; rs_contexts_next_stack(&walk);)
        if (walk.stack->kind == kind && walk.stack->environment.device == device)
            visit(data, walk.stack, walk.mr);
    gone(data, rs_context_folded_report(kind, device));
    rs_mutex_unlock(&rs_contexts_lock);
}

/* ---- other devices ---- */

static CUresult tell_stacks(struct rs_context *context, CUdevice peer, bool allowed)
{
    CUresult result = CUDA_SUCCESS;

    for (struct rs_stack_walk walk = {0};
         result == CUDA_SUCCESS && rs_context_next_stack(context, &walk);)
        result = rs_mr_access_changed(walk.mr, peer, allowed);
    return result;
}

/* Tells all stacks of the context which devices may access its memory now. The caller holds the
 * contexts' lock, so a stack that is not told here is made later, with the new peers. */
static CUresult apply_peers(struct rs_context *context)
{
    uint64_t before = atomic_load(&context->peers);
    uint64_t now =
        rs_wiring.peer_devices(context->handle) & ~(1ull << context->device % RS_DEVICES_MAX);
    CUresult result = CUDA_SUCCESS;

    RS_ASSERT_HELD(&rs_contexts_lock);
    atomic_store(&context->peers, now);
    for (uint64_t changed = before ^ now; changed && result == CUDA_SUCCESS;
         changed &= changed - 1) {
        CUdevice peer = __builtin_ctzll(changed);
        result = tell_stacks(context, peer, now >> peer & 1);
    }
    /* A device is no peer of itself. */
    RS_ASSERT_SLOW(!(now >> context->device % RS_DEVICES_MAX & 1));
    return result;
}

CUresult rs_context_apply_peers(CUcontext handle)
{
    RS_RELAXED_GUARD();
    struct rs_context *context;
    CUresult result = CUDA_SUCCESS;

    if (rs_context_is_creating())
        return result; /* this thread may hold the lock */
    rs_context_creating_begin();
    rs_mutex_lock(&rs_contexts_lock);
    context = rs_context_find(handle);
    if (context && context->handle == handle)
        result = apply_peers(context);
    rs_mutex_unlock(&rs_contexts_lock);
    rs_context_creating_end(true);
    return result;
}

/* ---- giving back ---- */

enum { VISITED_AT_ONCE = 64, ALL_DEVICES = -1 /* the other special value is RS_VISIT_HOST */ };

/* The first nap between two attempts of a trim; each later one is twice as long. */
enum { NAP_NS = 500 * 1000, NAP_DIVISOR = 16 /* the longest nap is the bound divided by this */ };

/* A visit of each stack of a device. The contexts' lock is not held during the visit, but the
 * context is kept from ending. At most VISITED_AT_ONCE stacks are collected at a time. */
struct device_visit {
    int device;     /* or ALL_DEVICES, or RS_VISIT_HOST */
    bool all_kinds; /* visits pinned memory's stacks too */
    bool is_single; /* collects one stack at a time, so that only its context is kept from ending:
                       the visit may wait for that context's work */
    void (*visit)(void *data, struct rs_stack *stack, struct rs_mr *mr);
    void *data;
    bool is_partial;    /* some stack was left out, or none could be visited */
    uint64_t ends_over; /* rs_context_ends_over before the first stack was left out */
    size_t skip, count;
    struct rs_stack *stacks[VISITED_AT_ONCE]; /* NULL for one that is left out */
};

/* True when a visit of `device`, which may be ALL_DEVICES or RS_VISIT_HOST, covers this stack. A
 * device's visit covers stacks of pinned memory only with all_kinds. */
static bool is_of_device(int device, bool all_kinds, const struct rs_stack *stack,
                         const struct rs_mr *mr)
{
    if (device == RS_VISIT_HOST)
        return mr->memories & 1u << RS_MEMORY_HOST;
    return (stack->environment.device == device || device == ALL_DEVICES) &&
           (all_kinds || stack->kind != RS_KIND_PINNED);
}

static bool is_full(const struct device_visit *visit)
{
    return visit->count == (visit->is_single ? 1 : VISITED_AT_ONCE);
}

static void collect_stack(struct device_visit *visit, struct rs_stack *stack)
{
    bool held;

    RS_ASSERT_HELD(&rs_contexts_lock);
    if (visit->skip > 0) {
        visit->skip--;
    } else if (!is_full(visit)) {
        held = rs_context_hold_locked(stack->context);
        visit->stacks[visit->count++] = held ? stack : NULL;
        visit->is_partial = visit->is_partial || !held;
    }
}

/* Collects the next stacks to visit, and keeps their contexts from ending. Leaves out stacks whose
 * context may be ending. */
static void collect_all(struct device_visit *visit)
{
    RS_MUTEX_GUARD(&rs_contexts_lock);

    if (!visit->is_partial)
        visit->ends_over = rs_context_ends_over();
    for (struct rs_stack_walk walk = {0}; rs_contexts_next_stack(&walk);)
        if (is_of_device(visit->device, visit->all_kinds, walk.stack, walk.mr))
            collect_stack(visit, walk.stack);
}

/* Calls visit with the stack's context current. */
static void visit_one(const struct device_visit *visit, struct rs_stack *stack)
{
    struct rs_mr *mr = atomic_load_explicit(&stack->mr, memory_order_acquire);
    CUresult result;

    if (!mr || !atomic_load(&stack->context->alive))
        return;
    RS_CONTEXT_GUARD(stack->context->handle, &result);
    if (result == CUDA_SUCCESS)
        visit->visit(visit->data, stack, mr);
}

static void visit_device(struct device_visit *visit)
{
    size_t done = 0;

    visit->is_partial = rs_context_is_creating(); /* this thread may hold the lock */
    if (visit->is_partial)
        return;
    do {
        visit->skip = done;
        visit->count = 0;
        collect_all(visit);
        for (size_t i = 0; i < visit->count; i++) {
            if (!visit->stacks[i])
                continue;
            visit_one(visit, visit->stacks[i]);
            rs_context_release(visit->stacks[i]->context);
        }
        done += visit->count;
    } while (is_full(visit));
}

/* Waits up to bound_ns for the end of a context whose stacks a visit left out: afterwards their
 * memory is the driver's again, or the stacks can be visited. Returns RS_READY_SOME when an end is
 * over and RS_READY_PENDING when none is. Returns RS_READY_NOTHING when no stack was left out, or
 * the thread must not wait. */
static enum rs_readiness wait_for_left_out(const struct device_visit *visit, uint64_t bound_ns)
{
    if (!visit->is_partial || !rs_context_may_wait_for_ends())
        return RS_READY_NOTHING;
    return bound_ns > 0 && rs_context_ends_wait(visit->ends_over, bound_ns) ? RS_READY_SOME
                                                                            : RS_READY_PENDING;
}

struct trim {
    size_t keep_bytes, returned_bytes;
    bool is_left; /* some memory stays, since its context works */
};

static void trim_stack(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct trim *trim = data;

    (void)stack;
    trim->returned_bytes += rs_mr_trim(mr, trim->keep_bytes);
    trim->keep_bytes -= rs_min(trim->keep_bytes, rs_mr_idle_bytes(mr));
    trim->is_left = rs_request.busy || trim->is_left;
    (void)rs_request_forget_busy();
}

static void begin_trim(void)
{
    rs_wiring.before_trim();
    rs_mr_retry_unfinished();
}

/* Trims once.  Begins a request for it, since no driver call waits without bound inside a request.
 * On a driver without fences nobody can tell whether a call would wait.  There none is begun:
 * unless the caller is inside a request, the trim may wait, and keeps one context at a time from
 * ending. */
static size_t trim_once(int device, size_t keep_bytes, uint64_t end_wait_ns, bool *is_left)
{
    struct trim trim = {.keep_bytes = keep_bytes};
    bool waits = !rs_fence_supported() && !rs_request_is_under_way();
    struct device_visit visit = {.device = device,
                                 .all_kinds = true,
                                 .is_single = waits,
                                 .visit = trim_stack,
                                 .data = &trim};

    if (!waits)
        rs_request_begin();
    begin_trim();
    visit_device(&visit);
    *is_left = wait_for_left_out(&visit, end_wait_ns) != RS_READY_NOTHING || trim.is_left;
    if (!waits)
        rs_request_end();
    return trim.returned_bytes;
}

size_t rs_context_trim(int device, size_t keep_bytes, uint64_t bound_ns, bool *is_left)
{
    uint64_t begin_ns = rs_clock_ns(), nap_ns = NAP_NS, napped_ns = 0;
    size_t bytes = trim_once(device, keep_bytes, bound_ns, is_left);

    /* The naps are counted too, so that the loop ends even if the clock stands still. */
    while (*is_left && rs_max(rs_clock_ns() - begin_ns, napped_ns) < bound_ns) {
        rs_nap(nap_ns);
        napped_ns += nap_ns;
        nap_ns = rs_min(2 * nap_ns, rs_max(bound_ns / NAP_DIVISOR, NAP_NS));
        bytes += trim_once(device, keep_bytes, 0, is_left);
    }
    return bytes;
}

/* A trim for a request that is out of memory. */
struct some {
    size_t rest_bytes, returned_bytes;
    unsigned initial_of;
};

static void trim_some(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct some *some = data;
    bool is_all = some->rest_bytes == SIZE_MAX;
    size_t idle_bytes = is_all ? 0 : rs_mr_idle_bytes(mr), returned_bytes;
    struct rs_trim trim = {.keep_bytes = idle_bytes - rs_min(idle_bytes, some->rest_bytes),
                           .initial_of = some->initial_of,
                           .is_reclaim = true};

    (void)stack;
    if (some->rest_bytes == 0)
        return;
    returned_bytes = rs_mr_trim_with(mr, &trim);
    some->returned_bytes += returned_bytes;
    some->rest_bytes -= is_all ? 0 : rs_min(some->rest_bytes, returned_bytes);
}

size_t rs_context_trim_some(int device, size_t bytes, unsigned initial_of)
{
    struct some some = {.rest_bytes = bytes, .initial_of = initial_of};
    struct device_visit visit = {.device = device, .visit = trim_some, .data = &some};

    begin_trim();
    visit_device(&visit);
    return some.returned_bytes;
}

struct readiness {
    enum rs_readiness best;
    uint64_t wait_ns;
};

static void make_stack_ready(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct readiness *readiness = data;
    enum rs_readiness now;

    (void)stack;
    if (readiness->best == RS_READY_SOME)
        return;
    now = rs_mr_make_ready(mr, readiness->wait_ns);
    readiness->best = now > readiness->best ? now : readiness->best;
}

enum rs_readiness rs_context_make_ready(int device, uint64_t wait_ns)
{
    struct readiness readiness = {RS_READY_NOTHING, wait_ns};
    struct device_visit visit = {.device = device, .visit = make_stack_ready, .data = &readiness};
    enum rs_readiness left_out;

    visit_device(&visit);
    if (readiness.best == RS_READY_SOME)
        return RS_READY_SOME;
    left_out = wait_for_left_out(&visit, wait_ns);
    return left_out > readiness.best ? left_out : readiness.best;
}

/* The arguments of rs_context_synchronise_slowly. */
struct wait {
    enum rs_synchronise when;
    CUcontext waited;
};

static void synchronise(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    const struct wait *wait = data;
    bool is_other = wait->when == RS_SYNCHRONISE_END_ALL && stack->context->handle != wait->waited;

    if (mr->has_threshold || wait->when == RS_SYNCHRONISE_CAPTURE)
        rs_mr_synchronise(mr, is_other ? RS_SYNCHRONISE_END_SOME : wait->when);
}

void rs_context_synchronise_slowly(enum rs_synchronise when, CUcontext waited)
{
    struct wait wait = {when, waited};
    struct device_visit visit = {.device = ALL_DEVICES,
                                 .all_kinds = when == RS_SYNCHRONISE_CAPTURE,
                                 .visit = synchronise,
                                 .data = &wait};

    if (!rs_mode_serving())
        return;
    RS_RELAXED_GUARD();
    if (when == RS_SYNCHRONISE_END_ALL && !waited) {
        const struct rs_context *current = rs_context_current(false);
        wait.waited = current ? current->handle : NULL;
    }
    visit_device(&visit);
}

uint64_t rs_context_moves(unsigned memories)
{
    uint64_t moves = 0;

    RS_EACH_STACK(walk)
        if (walk.mr->memories & memories)
            moves += rs_mr_progress(walk.mr);
    return moves;
}

/* Idle memory of an ending context counts too, since the driver gets it back. Such a context cannot
 * be held, so all is read under the contexts' lock, by calls that need no current context. */
size_t rs_context_idle_bytes_of(int device, unsigned memories)
{
    size_t bytes = 0;

    RS_EACH_STACK(walk)
        if (is_of_device(device, false, walk.stack, walk.mr))
            bytes += rs_mr_idle_bytes_of(walk.mr, memories);
    return bytes;
}

bool rs_context_idle_bytes_at_once(int device, size_t *bytes)
{
    if (rs_context_is_creating())
        return false;
    *bytes = rs_context_idle_bytes_of(device, ~0u);
    return true;
}
