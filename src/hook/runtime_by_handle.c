/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime layer for programs that open a libcudart and look its functions up (XLA, ctypes):
 * each runtime has three functions of ours that know it, so no caller has to be asked for its
 * runtime.
 */
#include "base/check.h"
#include "config/mode.h"
#include "context/context.h"
#include "driver/loader.h"
#include "hook/runtime.h"
#include "shim/shim.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { RUNTIMES = 4 }; /* opened in one process; what looks up in a fifth gets its own functions */

enum eager { UNKNOWN, NOT_EAGER, EAGER };

struct runtime {
    _Atomic(void *) base; /* where its object is loaded; NULL: none yet */
    _Atomic(void *) get_version, allocate, deallocate, allocate_managed;
    _Atomic int eager;
};

static struct runtime runtimes[RUNTIMES];

/* Asked at the first call, not at the look-up: a look-up calls nobody's code. */
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

/* Calls the runtime's own function and returns its answer. */
#define FORWARD(runtime, member, symbol, arguments)                                                \
    do {                                                                                           \
        void *target = atomic_load_explicit(&(runtime)->member, memory_order_acquire);             \
        __typeof__(symbol) *function;                                                              \
        rs_cuda_error result;                                                                      \
        memcpy(&function, &target, sizeof(function));                                              \
        result = function arguments;                                                               \
        rs_shim_forget_refusal();                                                                  \
        return result;                                                                             \
    } while (0)

static inline rs_cuda_error allocate(struct runtime *runtime, void **address, size_t size_bytes)
{
    CUdeviceptr allocated;

    if (address && serves_at_once(runtime) &&
        rs_shim_allocate_at_once(RS_STACK_DEVICE, size_bytes, &allocated)) {
        *address = (void *)(uintptr_t)allocated;
        return 0;
    }
    FORWARD(runtime, allocate, cudaMalloc, (address, size_bytes));
}

static inline rs_cuda_error deallocate(struct runtime *runtime, void *address)
{
    if (address && serves_at_once(runtime) && rs_shim_free_at_once((CUdeviceptr)(uintptr_t)address))
        return 0;
    FORWARD(runtime, deallocate, cudaFree, (address));
}

static inline rs_cuda_error allocate_managed(struct runtime *runtime, void **address,
                                             size_t size_bytes, unsigned flags)
{
    CUdeviceptr allocated;

    if (address && flags == RS_RUNTIME_ATTACH_GLOBAL && serves_at_once(runtime) &&
        rs_shim_allocate_at_once(RS_STACK_MANAGED, size_bytes, &allocated)) {
        *address = (void *)(uintptr_t)allocated;
        return 0;
    }
    FORWARD(runtime, allocate_managed, cudaMallocManaged, (address, size_bytes, flags));
}

/* ---- the functions that are handed out ---- */

#define FUNCTIONS(n)                                                                               \
    static rs_cuda_error allocate_##n(void **address, size_t size_bytes)                           \
    {                                                                                              \
        return allocate(&runtimes[n], address, size_bytes);                                        \
    }                                                                                              \
    static rs_cuda_error deallocate_##n(void *address)                                             \
    {                                                                                              \
        return deallocate(&runtimes[n], address);                                                  \
    }                                                                                              \
    static rs_cuda_error allocate_managed_##n(void **address, size_t size_bytes, unsigned flags)   \
    {                                                                                              \
        return allocate_managed(&runtimes[n], address, size_bytes, flags);                         \
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

/* The runtime loaded at that place, or a new one for it; NULL when there are too many. */
static struct runtime *runtime_at(void *base)
{
    for (int i = 0; i < RUNTIMES; i++) {
        void *at = NULL;
        if (atomic_compare_exchange_strong(&runtimes[i].base, &at, base) || at == base)
            return &runtimes[i];
    }
    return NULL;
}

/* Another library may have been loaded to a place since. */
static void learn(struct runtime *runtime, void *get_version, _Atomic(void *) *member, void *real)
{
    if (atomic_exchange(&runtime->get_version, get_version) != get_version)
        atomic_store(&runtime->eager, UNKNOWN);
    atomic_store_explicit(member, real, memory_order_release);
}

void *rs_runtime_by_handle(void *handle, const char *symbol, void *real)
{
    void *get_version = rs_real_dlsym()(handle, "cudaRuntimeGetVersion"), *answer = NULL;
    struct runtime *runtime = NULL;
    Dl_info mine, version;

    /* Another interposer has no such function, or has it from a runtime: what is asked for by name
     * there must be called. */
    if (!get_version)
        (void)dlerror(); /* the program asks whether its own look-up failed */
    if (get_version && dladdr(get_version, &version) && dladdr(real, &mine) &&
        version.dli_fbase == mine.dli_fbase)
        runtime = runtime_at(mine.dli_fbase);
    if (!runtime)
        return real;
#define ANSWER(name, member)                                                                       \
    if (strcmp(symbol, name) == 0) {                                                               \
        learn(runtime, get_version, &runtime->member, real);                                       \
        memcpy(&answer, &ours[runtime - runtimes].member, sizeof(answer));                         \
    }
    ANSWER("cudaMalloc", allocate)
    ANSWER("cudaFree", deallocate)
    ANSWER("cudaMallocManaged", allocate_managed)
#undef ANSWER
    return answer ? answer : real;
}
