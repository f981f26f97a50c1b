/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime layer serves requests that succeed at once, which saves the runtime's own part of a
 * call (60 to 110 ns of every pair of cudaMalloc and cudaFree, MEASURED.md). Every other call (no
 * context yet, a failure, an unknown pointer, size 0) goes to the runtime that the caller would
 * have called without the library, and from there to the hooks of the driver. So the last error and
 * the lazy start are the runtime's own. */
#include "hook/runtime.h"

#include "base/check.h"
#include "base/process.h"
#include "base/thread.h"
#include "config/mode.h"
#include "context/context.h"
#include "driver/driver.h"
#include "hook/allocation.h"
#include "hook/caller.h"
#include "trace/object.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    ATTACH_GLOBAL = 1, /* cudaMemAttachGlobal */
    NO_RUNTIME = 999,  /* cudaErrorUnknown */
    /* The first version whose cudaSetDevice makes the new device's context current; older runtimes
     * leave the old context current until a later call. */
    FIRST_EAGER_RUNTIME = 12000
};

enum function { MALLOC, FREE, MALLOC_MANAGED, FUNCTIONS };

static const char *const names[FUNCTIONS] = {"cudaMalloc", "cudaFree", "cudaMallocManaged"};

/* Casts `address` to a pointer to a function of the type of `symbol`. */
#define TYPED(symbol, address) ((__typeof__(symbol) *)(address))

/* A place in the program that calls the library, known by its return address, and the runtime's
 * functions that it would call without the library. */
struct site {
    const void *caller;
    unsigned long long identity; /* rs_object_identity of the caller, which changes if another
                                    library is loaded there */
    _Atomic int served;          /* SERVED_... */
    void *function[FUNCTIONS];   /* NULL: the function must be looked up each time */
};

enum {
    SERVED_UNKNOWN, /* not decided yet */
    SERVED_NOT, /* the runtime is too old, the settings exclude it, or a tool must see its calls */
    SERVED_AT_ONCE,
};

enum { SITES = 1024, NOT_AT_ONCE = -1 };

_Static_assert((int)FUNCTIONS == (int)RS_RUNTIME_FUNCTIONS, "each function has its callers");

static _Atomic(struct site *) sites[SITES];

/* True when the runtime makes a device's context current in cudaSetDevice, and not later.
 * `get_version` is the runtime's cudaRuntimeGetVersion; if it is NULL, the answer is false. */
static bool is_version_eager(void *get_version)
{
    rs_cuda_error (*function)(int *);
    int version = 0;

    memcpy(&function, &get_version, sizeof(function));
    return function && function(&version) == 0 && version >= FIRST_EAGER_RUNTIME;
}

static void resolve_site(struct site *site, const void *caller)
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

/* Looks the caller up in the table, and enters it at its first call. Entries are never removed.
 * Forwarding the call of a known caller takes no lock of the loader. In a forked child such a lock
 * might never be released, if another thread of the parent held it at the fork. */
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
        resolve_site(made, caller);
        if (atomic_compare_exchange_strong(&sites[at], &site, made))
            return made;
        free(made);
        if (site->caller == caller)
            return site;
    }
    if (overflow.caller != caller)
        resolve_site(&overflow, caller);
    return &overflow;
}

/* True when the settings allow the layer to serve, and no tool forbids it: one that
 * CUDA_INJECTION64_PATH names traces the runtime's calls, and must see them. Called after the
 * settings have been read. */
static bool layer_is_open(void)
{
    const char *path = rs_environment_get("CUDA_INJECTION64_PATH");

    return !(path && *path) && (rs_config.hook_groups & RS_HOOK_GROUP_RUNTIME);
}

/* Decides, at the first call, whether calls from this runtime may be served. This asks the runtime
 * for its version, which could not be done when the program looked the function up, as a look-up
 * must not call code of other libraries. `get_version` is the runtime's cudaRuntimeGetVersion; if
 * it is NULL, it is looked up for the caller (rs_caller_find_runtime). */
static bool decide(_Atomic int *served, void *get_version, const void *caller)
{
    int known = atomic_load_explicit(served, memory_order_acquire);

    if (RS_UNLIKELY(known == SERVED_UNKNOWN)) {
        if (!get_version)
            get_version = rs_caller_find_runtime(caller, "cudaRuntimeGetVersion");
        known = layer_is_open() && is_version_eager(get_version) ? SERVED_AT_ONCE : SERVED_NOT;
        atomic_store(served, known);
    }
    return known == SERVED_AT_ONCE;
}

RS_HOT_INLINE struct rs_recent_caller *served_caller(const void *caller, enum function which)
{
    return &rs_thread.served_callers[which][site_slot(caller) % RS_RECENT_CALLERS];
}

/* Slow path of serves_at_once, for a caller that is not in the thread's cache. Returns the number
 * of the caller's shared object (0 for a free), or NOT_AT_ONCE if the call cannot be served at
 * once. */
__attribute__((noinline)) static int serves_at_once_slowly(const void *caller, enum function which)
{
    struct rs_recent_caller *recent = served_caller(caller, which);

    struct site *site;

    if (rs_mode_now() != RS_MODE_SERVE || rs_thread.forwarding_to)
        return NOT_AT_ONCE;
    site = find_site(caller);
    if (!decide(&site->served, NULL, caller))
        return NOT_AT_ONCE;
    *recent = (struct rs_recent_caller){caller,
                                        which == FREE ? 0 : (uint16_t)rs_object_of_caller(caller)};
    return recent->object;
}

/* True when a call from `caller` may be served without its runtime; *object is then the number of
 * the caller's shared object (0 for a free). */
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
    /* If this thread is already forwarding to this function, the function has called the library
     * again: it is another interposer between the program and its runtime, and the next definition
     * is the right one. */
    return target == rs_thread.forwarding_to ? rs_caller_next(names[which]) : target;
}

/* What the thread was forwarding already when it called a runtime (NULL and 0: nothing). */
struct before {
    void *target;
    unsigned object;
};

/* Returns the function of the caller's own runtime, or NULL if there is none. Marks the thread as
 * forwarding to that function, until leave_runtime; an allocation meanwhile counts as the request
 * of the caller's object. *before keeps the previous marks. */
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

/* Forwarding is not inline, so that calls that are served at once need not save registers for
 * it. */
#define FORWARD(symbol, which, parameters, arguments)                                              \
    RS_COLD static rs_cuda_error forward_##symbol parameters                                       \
    {                                                                                              \
        struct before before;                                                                      \
        void *target = enter_runtime(caller, which, &before);                                      \
                                                                                                   \
        return target ? leave_runtime(&before, TYPED(symbol, target) arguments) : NO_RUNTIME;      \
    }

FORWARD(cudaMalloc, MALLOC, (const void *caller, void **address, size_t size_bytes),
        (address, size_bytes))
FORWARD(cudaFree, FREE, (const void *caller, void *address), (address))
FORWARD(cudaMallocManaged, MALLOC_MANAGED,
        (const void *caller, void **address, size_t size_bytes, unsigned flags),
        (address, size_bytes, flags))

RS_HOT_INLINE bool allocate_at_once(unsigned which_stack, void **address, size_t size_bytes,
                                    unsigned object)
{
    CUdeviceptr allocated;

    if (RS_UNLIKELY(!rs_serve_fast(which_stack, size_bytes, object, &allocated)))
        return false;
    *address = (void *)(uintptr_t)allocated;
    return true;
}

RS_HOT rs_cuda_error cudaMalloc(void **address, size_t size_bytes)
{
    const void *caller = __builtin_return_address(0);
    unsigned object;

    if (RS_LIKELY(address) && RS_LIKELY(serves_at_once(caller, MALLOC, &object)) &&
        RS_LIKELY(allocate_at_once(RS_STACK_DEVICE, address, size_bytes, object)))
        return 0;
    return forward_cudaMalloc(caller, address, size_bytes);
}

RS_HOT rs_cuda_error cudaFree(void *address)
{
    const void *caller = __builtin_return_address(0);
    unsigned object;

    if (RS_LIKELY(address) && RS_LIKELY(serves_at_once(caller, FREE, &object)) &&
        RS_LIKELY(rs_free_fast((CUdeviceptr)(uintptr_t)address)))
        return 0;
    return forward_cudaFree(caller, address);
}

rs_cuda_error cudaMallocManaged(void **address, size_t size_bytes, unsigned flags)
{
    const void *caller = __builtin_return_address(0);
    unsigned object;

    if (address && flags == ATTACH_GLOBAL && serves_at_once(caller, MALLOC_MANAGED, &object) &&
        allocate_at_once(RS_STACK_MANAGED, address, size_bytes, object))
        return 0;
    return forward_cudaMallocManaged(caller, address, size_bytes, flags);
}

/* ---- for programs that open a libcudart and look its functions up (XLA, ctypes) ----
 *
 * Each runtime gets three functions of the library's own, so the caller's runtime need not be
 * found. */

/* The number of runtimes in one process for which look-ups are answered with hooks; a look-up in a
 * fifth runtime finds that runtime's own functions. */
enum { RUNTIMES = 4 };

struct runtime {
    _Atomic(void *) base; /* where the runtime's object is loaded; NULL: this place is free */
    _Atomic(void *) get_version, functions[FUNCTIONS];
    _Atomic int served; /* SERVED_... */
};

static struct runtime runtimes[RUNTIMES];

static inline bool runtime_serves(struct runtime *runtime)
{
    return rs_mode_now() == RS_MODE_SERVE &&
           decide(&runtime->served, atomic_load(&runtime->get_version), NULL);
}

/* Called after a call of the runtime's own function: forgets the refused request, and returns
 * `result`. */
static inline rs_cuda_error forwarded(rs_cuda_error result)
{
    rs_shim_forget_refusal();
    return result;
}

static inline rs_cuda_error forwarded_for(unsigned before, rs_cuda_error result)
{
    rs_caller_forward_end(before);
    return forwarded(result);
}

#define CALL_OWN(runtime, symbol, which)                                                           \
    TYPED(symbol, atomic_load_explicit(&(runtime)->functions[which], memory_order_acquire))

static inline rs_cuda_error runtime_allocate(struct runtime *runtime, unsigned object,
                                             void **address, size_t size_bytes)
{
    unsigned before;

    if (address && runtime_serves(runtime) &&
        allocate_at_once(RS_STACK_DEVICE, address, size_bytes, object))
        return 0;
    before = rs_caller_forward_begin(object);
    return forwarded_for(before, CALL_OWN(runtime, cudaMalloc, MALLOC)(address, size_bytes));
}

static inline rs_cuda_error runtime_deallocate(struct runtime *runtime, void *address)
{
    if (address && runtime_serves(runtime) && rs_free_fast((CUdeviceptr)(uintptr_t)address))
        return 0;
    return forwarded(CALL_OWN(runtime, cudaFree, FREE)(address));
}

static inline rs_cuda_error runtime_allocate_managed(struct runtime *runtime, unsigned object,
                                                     void **address, size_t size_bytes,
                                                     unsigned flags)
{
    unsigned before;

    if (address && flags == ATTACH_GLOBAL && runtime_serves(runtime) &&
        allocate_at_once(RS_STACK_MANAGED, address, size_bytes, object))
        return 0;
    before = rs_caller_forward_begin(object);
    return forwarded_for(
        before, CALL_OWN(runtime, cudaMallocManaged, MALLOC_MANAGED)(address, size_bytes, flags));
}

#define GIVEN(n)                                                                                   \
    static rs_cuda_error allocate_##n(void **address, size_t size_bytes)                           \
    {                                                                                              \
        return runtime_allocate(&runtimes[n], RS_CALLER_OBJECT(), address, size_bytes);            \
    }                                                                                              \
    static rs_cuda_error deallocate_##n(void *address)                                             \
    {                                                                                              \
        return runtime_deallocate(&runtimes[n], address);                                          \
    }                                                                                              \
    static rs_cuda_error allocate_managed_##n(void **address, size_t size_bytes, unsigned flags)   \
    {                                                                                              \
        return runtime_allocate_managed(&runtimes[n], RS_CALLER_OBJECT(), address, size_bytes,     \
                                        flags);                                                    \
    }

GIVEN(0)
GIVEN(1)
GIVEN(2)
GIVEN(3)

#define ROW(n)                                                                                     \
    {                                                                                              \
        (void *)allocate_##n, (void *)deallocate_##n, (void *)allocate_managed_##n                 \
    }

static void *const given[RUNTIMES][FUNCTIONS] = {ROW(0), ROW(1), ROW(2), ROW(3)};

/* Returns the record of the runtime that is loaded at `base`, entering it if it is new. NULL for a
 * fifth runtime. */
static struct runtime *runtime_at(void *base)
{
    for (int i = 0; i < RUNTIMES; i++) {
        void *at = NULL;
        if (atomic_compare_exchange_strong(&runtimes[i].base, &at, base) || at == base)
            return &runtimes[i];
    }
    return NULL;
}

/* Returns the record of the runtime in which `real` lies, and stores its version function in
 * *get_version. Returns NULL when `real` is another interposer's function, which must then be
 * called: its object has no version function, or finds that of a runtime in another object. */
static struct runtime *runtime_of(void *handle, void *real, void **get_version)
{
    Dl_info mine, version;

    *get_version = rs_real_dlsym()(handle, "cudaRuntimeGetVersion");
    if (!*get_version)
        (void)dlerror(); /* dlerror() must report only a failure of the program's own look-up */
    if (!*get_version || !dladdr(*get_version, &version) || !dladdr(real, &mine) ||
        version.dli_fbase != mine.dli_fbase)
        return NULL;
    return runtime_at(mine.dli_fbase);
}

/* Keeps `real` in the runtime's record, for calls that are not served. Each look-up forgets whether
 * the runtime may be served, since another version may have been loaded at its address. */
void *rs_runtime_by_handle(void *handle, const char *symbol, void *real)
{
    void *get_version;
    struct runtime *runtime = runtime_of(handle, real, &get_version);
    int which = MALLOC;

    while (which < FUNCTIONS && strcmp(symbol, names[which]) != 0)
        which++;
    if (!runtime || which == FUNCTIONS)
        return real;
    atomic_store(&runtime->get_version, get_version);
    atomic_store(&runtime->served, SERVED_UNKNOWN);
    atomic_store_explicit(&runtime->functions[which], real, memory_order_release);
    return given[runtime - runtimes][which];
}
