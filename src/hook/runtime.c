/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime layer serves requests that succeed at once, which saves the runtime's own part of a
 * call (60 to 110 ns of every pair of cudaMalloc and cudaFree, MEASURED.md).  Every other call (no
 * context yet, a failure, an unknown pointer, size 0) goes to the runtime that the caller would
 * have called without the library, and comes back through the driver layer: so the last error and
 * the lazy start are the runtime's own. */
#include "hook/runtime.h"

#include "base/check.h"
#include "base/process.h"
#include "base/thread.h"
#include "config/mode.h"
#include "context/context.h"
#include "hook/caller.h"
#include "shim/shim.h"
#include "trace/object.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    NO_RUNTIME = 999,           /* cudaErrorUnknown */
    FIRST_EAGER_RUNTIME = 12000 /* older: cudaSetDevice leaves the old context current */
};

enum function { MALLOC, FREE, MALLOC_MANAGED, FUNCTIONS };

static const char *const names[FUNCTIONS] = {"cudaMalloc", "cudaFree", "cudaMallocManaged"};

/* A return address of calls to the library, and the runtime that the caller belongs to. */
struct site {
    const void *caller;
    unsigned long long identity; /* rs_object_identity */
    _Atomic int served;          /* SERVED_... */
    void *function[FUNCTIONS];   /* NULL: look again each time */
};

enum {
    SERVED_UNKNOWN, /* the settings have not been read yet */
    SERVED_NOT,     /* the runtime is too old, or the settings or a tool want to see its calls */
    SERVED_AT_ONCE,
};

enum { SITES = 1024, NOT_AT_ONCE = -1 };

_Static_assert((int)FUNCTIONS == (int)RS_RUNTIME_FUNCTIONS, "each function has its callers");

static _Atomic(struct site *) sites[SITES];

bool rs_runtime_is_eager(void *get_version)
{
    rs_cuda_error (*function)(int *);
    int version = 0;

    memcpy(&function, &get_version, sizeof(function));
    return function && function(&version) == 0 && version >= FIRST_EAGER_RUNTIME;
}

static void resolve(struct site *site, const void *caller)
{
    bool keep;

    site->caller = caller;
    site->identity = rs_object_identity(caller);
    atomic_store_explicit(&site->served, SERVED_UNKNOWN, memory_order_relaxed);
    for (int i = 0; i < FUNCTIONS; i++) {
        site->function[i] = rs_caller_find_to_keep(caller, names[i], &keep);
        if (!keep)
            site->function[i] = NULL;
    }
}

static size_t site_slot(const void *caller)
{
    return ((uintptr_t)caller * 0x9e3779b97f4a7c15u) >> 54;
}

_Static_assert(SITES == 1 << (64 - 54), "site_slot fits the table");

/* Looks the caller up in the table, and enters it at its first call.  Entries are never removed.  A
 * forward takes no lock of the loader, which a child of fork() might find taken for ever. */
static struct site *find_site(const void *caller)
{
    static __thread struct site overflow;
    struct site *made, *site = NULL;
    size_t at = site_slot(caller);

    for (size_t i = 0; i < SITES; i++, at = (at + 1) % SITES) {
        site = atomic_load_explicit(&sites[at], memory_order_acquire);
        if (site && site->caller == caller)
            return site;
        if (site)
            continue;
        made = calloc(1, sizeof(*made));
        if (!made)
            break;
        resolve(made, caller);
        if (atomic_compare_exchange_strong(&sites[at], &site, made))
            return made;
        free(made);
        if (site->caller == caller)
            return site;
    }
    if (overflow.caller != caller)
        resolve(&overflow, caller);
    return &overflow;
}

/* A tool that CUDA_INJECTION64_PATH names traces the runtime's calls, and must see them. */
bool rs_runtime_layer_is_open(void)
{
    static _Atomic int open; /* 0 unknown, 1 no, 2 yes */
    int known = atomic_load_explicit(&open, memory_order_relaxed);

    if (RS_UNLIKELY(!known)) {
        const char *path = rs_environment_get("CUDA_INJECTION64_PATH");
        known = (path && *path) || !(rs_config.hook_groups & RS_HOOK_GROUP_RUNTIME) ? 1 : 2;
        atomic_store_explicit(&open, known, memory_order_relaxed);
    }
    return known == 2;
}

static bool decide(struct site *site)
{
    int served = atomic_load_explicit(&site->served, memory_order_relaxed);

    if (served == SERVED_UNKNOWN) {
        served = rs_runtime_layer_is_open() && rs_runtime_is_eager(rs_caller_find_runtime(
                                                   site->caller, "cudaRuntimeGetVersion"))
                     ? SERVED_AT_ONCE
                     : SERVED_NOT;
        atomic_store_explicit(&site->served, served, memory_order_relaxed);
    }
    return served == SERVED_AT_ONCE;
}

RS_HOT_INLINE struct rs_recent_caller *served_caller(const void *caller, enum function which)
{
    return &rs_thread.served_callers[which][site_slot(caller) % RS_RECENT_CALLERS];
}

/* The caller's object, which is not looked for to free, or NOT_AT_ONCE. */
__attribute__((noinline)) static int serves_at_once_slowly(const void *caller, enum function which)
{
    struct rs_recent_caller *recent = served_caller(caller, which);

    if (rs_mode_now() != RS_MODE_SERVE || rs_thread.forwarding_to || !decide(find_site(caller)))
        return NOT_AT_ONCE;
    *recent = (struct rs_recent_caller){caller,
                                        which == FREE ? 0 : (uint16_t)rs_object_of_caller(caller)};
    return recent->object;
}

/* True when a call from `caller` may be served without its runtime; *object is the caller's. */
RS_HOT_INLINE bool serves_at_once(const void *caller, enum function which, unsigned *object)
{
    const struct rs_recent_caller *recent = served_caller(caller, which);
    uintptr_t unusual = rs_mode_unserving() | (uintptr_t)rs_thread.forwarding_to |
                        RS_DIFFER(recent->address, caller);
    int found;

    if (RS_LIKELY(unusual == 0)) {
        *object = recent->object;
        return true;
    }
    found = serves_at_once_slowly(caller, which);
    *object = (unsigned)found;
    return found != NOT_AT_ONCE;
}

static void *forward_target(const void *caller, enum function which)
{
    const struct site *site = find_site(caller);
    void *target = site->function[which];

    if (!target || site->identity != rs_object_identity(caller))
        target = rs_caller_find_runtime(caller, names[which]);
    /* The function that this thread forwards to calls the library again: it is another interposer,
     * between the program and its runtime. */
    return target == rs_thread.forwarding_to ? rs_caller_next(names[which]) : target;
}

/* What a thread was forwarding before it called a runtime. */
struct before {
    void *target;
    unsigned object;
};

/* Returns the function of the caller's own runtime, NULL without one.  Until leave_runtime the
 * thread is noted as forwarding to it, for the caller's object; *before is the note that it
 * replaces. */
static void *enter_runtime(const void *caller, enum function which, struct before *before)
{
    void *target = forward_target(caller, which);

    if (!target)
        return NULL;
    before->target = rs_thread.forwarding_to;
    before->object = rs_thread.forwarding_for;
    if (which != FREE && rs_mode_serving())
        (void)rs_caller_forward_begin(rs_object_of(caller));
    rs_thread.forwarding_to = target;
    return target;
}

static rs_cuda_error leave_runtime(const struct before *before, rs_cuda_error result)
{
    rs_thread.forwarding_to = before->target;
    rs_caller_forward_end(before->object);
    rs_shim_forget_refusal();
    return result;
}

/* Not inline, so that calls that are served at once save no registers for these. */
RS_COLD static rs_cuda_error forward_malloc(const void *caller, void **address, size_t size_bytes)
{
    struct before before;
    void *target = enter_runtime(caller, MALLOC, &before);

    if (!target)
        return NO_RUNTIME;
    return leave_runtime(&before, RS_RUNTIME_CALL(cudaMalloc, target)(address, size_bytes));
}

RS_COLD static rs_cuda_error forward_free(const void *caller, void *address)
{
    struct before before;
    void *target = enter_runtime(caller, FREE, &before);

    if (!target)
        return NO_RUNTIME;
    return leave_runtime(&before, RS_RUNTIME_CALL(cudaFree, target)(address));
}

__attribute__((noinline)) static rs_cuda_error
forward_malloc_managed(const void *caller, void **address, size_t size_bytes, unsigned flags)
{
    struct before before;
    void *target = enter_runtime(caller, MALLOC_MANAGED, &before);

    if (!target)
        return NO_RUNTIME;
    return leave_runtime(&before,
                         RS_RUNTIME_CALL(cudaMallocManaged, target)(address, size_bytes, flags));
}

RS_HOT rs_cuda_error cudaMalloc(void **address, size_t size_bytes)
{
    const void *caller = __builtin_return_address(0);
    CUdeviceptr allocated;
    unsigned object;

    if (RS_LIKELY(address) && RS_LIKELY(serves_at_once(caller, MALLOC, &object)) &&
        RS_LIKELY(rs_shim_allocate_at_once(RS_STACK_DEVICE, size_bytes, object, &allocated))) {
        *address = (void *)(uintptr_t)allocated;
        return 0;
    }
    return forward_malloc(caller, address, size_bytes);
}

RS_HOT rs_cuda_error cudaFree(void *address)
{
    const void *caller = __builtin_return_address(0);
    unsigned object;

    if (RS_LIKELY(address) && RS_LIKELY(serves_at_once(caller, FREE, &object)) &&
        RS_LIKELY(rs_shim_free_at_once((CUdeviceptr)(uintptr_t)address)))
        return 0;
    return forward_free(caller, address);
}

rs_cuda_error cudaMallocManaged(void **address, size_t size_bytes, unsigned flags)
{
    const void *caller = __builtin_return_address(0);
    CUdeviceptr allocated;
    unsigned object;

    if (!address || flags != RS_RUNTIME_ATTACH_GLOBAL ||
        !serves_at_once(caller, MALLOC_MANAGED, &object) ||
        !rs_shim_allocate_at_once(RS_STACK_MANAGED, size_bytes, object, &allocated))
        return forward_malloc_managed(caller, address, size_bytes, flags);
    *address = (void *)(uintptr_t)allocated;
    return 0;
}
