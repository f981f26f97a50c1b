/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime layer for programs that open a libcudart and look its functions up (XLA, ctypes).
 * Each runtime gets three functions of the library's own, so the caller's runtime need not be
 * found. */
#include "base/check.h"
#include "config/mode.h"
#include "context/context.h"
#include "driver/driver.h"
#include "hook/caller.h"
#include "hook/runtime.h"
#include "shim/shim.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { RUNTIMES = 4 }; /* in one process; a look-up in a fifth runtime finds its own functions */

enum eager { UNKNOWN, NOT_EAGER, EAGER };

struct runtime {
    _Atomic(void *) base; /* where its object is loaded; NULL: none yet */
    _Atomic(void *) get_version, allocate, deallocate, allocate_managed;
    _Atomic int eager;
};

static struct runtime runtimes[RUNTIMES];

/* The runtime is asked at the first call: a look-up calls no code of other libraries. */
static bool is_eager(struct runtime *runtime)
{
    int eager = atomic_load_explicit(&runtime->eager, memory_order_acquire);

    if (RS_UNLIKELY(eager == UNKNOWN)) {
        eager = rs_runtime_is_eager(atomic_load(&runtime->get_version)) ? EAGER : NOT_EAGER;
        atomic_store(&runtime->eager, eager);
    }
    return eager == EAGER;
}

static inline bool serves_at_once(struct runtime *runtime)
{
    return rs_mode_now() == RS_MODE_SERVE && rs_runtime_layer_is_open() && is_eager(runtime);
}

static inline void *real_of(_Atomic(void *) *member)
{
    return atomic_load_explicit(member, memory_order_acquire);
}

/* After a call of the runtime's own function. */
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

static inline rs_cuda_error allocate(struct runtime *runtime, const void *caller, void **address,
                                     size_t size_bytes)
{
    unsigned object = rs_caller_object(caller), before;
    CUdeviceptr allocated;

    if (address && serves_at_once(runtime) &&
        rs_shim_allocate_at_once(RS_STACK_DEVICE, size_bytes, object, &allocated)) {
        *address = (void *)(uintptr_t)allocated;
        return 0;
    }
    before = rs_caller_forward_begin(object);
    return forwarded_for(
        before, RS_RUNTIME_CALL(cudaMalloc, real_of(&runtime->allocate))(address, size_bytes));
}

static inline rs_cuda_error deallocate(struct runtime *runtime, void *address)
{
    if (address && serves_at_once(runtime) && rs_shim_free_at_once((CUdeviceptr)(uintptr_t)address))
        return 0;
    return forwarded(RS_RUNTIME_CALL(cudaFree, real_of(&runtime->deallocate))(address));
}

static inline rs_cuda_error allocate_managed(struct runtime *runtime, const void *caller,
                                             void **address, size_t size_bytes, unsigned flags)
{
    unsigned object = rs_caller_object(caller), before;
    CUdeviceptr allocated;

    if (address && flags == RS_RUNTIME_ATTACH_GLOBAL && serves_at_once(runtime) &&
        rs_shim_allocate_at_once(RS_STACK_MANAGED, size_bytes, object, &allocated)) {
        *address = (void *)(uintptr_t)allocated;
        return 0;
    }
    before = rs_caller_forward_begin(object);
    return forwarded_for(before,
                         RS_RUNTIME_CALL(cudaMallocManaged, real_of(&runtime->allocate_managed))(
                             address, size_bytes, flags));
}

/* ---- the functions that are handed out ---- */

#define FUNCTIONS(n)                                                                               \
    static rs_cuda_error allocate_##n(void **address, size_t size_bytes)                           \
    {                                                                                              \
        return allocate(&runtimes[n], __builtin_return_address(0), address, size_bytes);           \
    }                                                                                              \
    static rs_cuda_error deallocate_##n(void *address)                                             \
    {                                                                                              \
        return deallocate(&runtimes[n], address);                                                  \
    }                                                                                              \
    static rs_cuda_error allocate_managed_##n(void **address, size_t size_bytes, unsigned flags)   \
    {                                                                                              \
        return allocate_managed(&runtimes[n], __builtin_return_address(0), address, size_bytes,    \
                                flags);                                                            \
    }

FUNCTIONS(0)
FUNCTIONS(1)
FUNCTIONS(2)
FUNCTIONS(3)

#define ROW(n)                                                                                     \
    {                                                                                              \
        allocate_##n, deallocate_##n, allocate_managed_##n                                         \
    }

static const struct {
    __typeof__(cudaMalloc) *allocate;
    __typeof__(cudaFree) *deallocate;
    __typeof__(cudaMallocManaged) *allocate_managed;
} ours[RUNTIMES] = {ROW(0), ROW(1), ROW(2), ROW(3)};

/* The runtime that is loaded at `base`, entered if it is new; NULL for a fifth one. */
static struct runtime *runtime_at(void *base)
{
    for (int i = 0; i < RUNTIMES; i++) {
        void *at = NULL;
        if (atomic_compare_exchange_strong(&runtimes[i].base, &at, base) || at == base)
            return &runtimes[i];
    }
    return NULL;
}

/* Keeps the runtime's own function.  Another library may have been loaded to the place since the
 * last look-up: then its version is asked anew. */
static void learn(struct runtime *runtime, void *get_version, _Atomic(void *) *member, void *real)
{
    if (atomic_exchange(&runtime->get_version, get_version) != get_version)
        atomic_store(&runtime->eager, UNKNOWN);
    atomic_store_explicit(member, real, memory_order_release);
}

/* The runtime in which `real` lies, with its version function in *get_version; NULL when it lies in
 * none: another interposer has no such function, or has it from a runtime, and then the
 * interposer's function of that name must be called. */
static struct runtime *runtime_of(void *handle, void *real, void **get_version)
{
    Dl_info mine, version;

    *get_version = rs_real_dlsym()(handle, "cudaRuntimeGetVersion");
    if (!*get_version)
        (void)dlerror(); /* the program asks whether its own look-up failed */
    if (!*get_version || !dladdr(*get_version, &version) || !dladdr(real, &mine) ||
        version.dli_fbase != mine.dli_fbase)
        return NULL;
    return runtime_at(mine.dli_fbase);
}

void *rs_runtime_by_handle(void *handle, const char *symbol, void *real)
{
    void *get_version;
    struct runtime *runtime = runtime_of(handle, real, &get_version);

    if (!runtime)
        return real;
    if (strcmp(symbol, "cudaMalloc") == 0) {
        learn(runtime, get_version, &runtime->allocate, real);
        return (void *)ours[runtime - runtimes].allocate;
    }
    if (strcmp(symbol, "cudaFree") == 0) {
        learn(runtime, get_version, &runtime->deallocate, real);
        return (void *)ours[runtime - runtimes].deallocate;
    }
    if (strcmp(symbol, "cudaMallocManaged") == 0) {
        learn(runtime, get_version, &runtime->allocate_managed, real);
        return (void *)ours[runtime - runtimes].allocate_managed;
    }
    return real;
}
