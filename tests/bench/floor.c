/* SPDX-License-Identifier: Apache-2.0 */
/* The floor of what a door can cost: a library to preload whose cudaMalloc and cudaFree answer at
 * once out of a stack per size and thread, with no allocator behind it.  What a program takes under
 * it is what its own call and the way to us cost; only the rest is the allocator's.
 *
 * For measuring only: a block is handed out again while work may still use it, nothing ever goes
 * back to the driver, and what it does not know it forwards.  Answers programs linked with a
 * runtime, those that look one up, and the driver's functions by dlsym and cuGetProcAddress.
 *
 * Built with ADDRESSES_ONLY there is no memory either: each allocation is another address that
 * nobody may touch, and no free is remembered.  A program whose sizes are all different would find
 * no stack of its size, and can have its floor only so. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

#ifdef ADDRESSES_ONLY
/* No driver hands these out: below the highest address of a process, far from all mappings. */
static const uintptr_t addresses_begin = (uintptr_t)0x200000000000, slice = (uintptr_t)1 << 36;
enum { SLICES = 256 };

static __thread uintptr_t next_address;

static uintptr_t take(size_t bytes)
{
    static _Atomic unsigned threads;

    if (!bytes)
        return 0;
    if (!next_address || next_address % slice == 0)
        next_address = addresses_begin + slice * (atomic_fetch_add(&threads, 1) % SLICES);
    return next_address += 512;
}

static bool give(uintptr_t at)
{
    return at - addresses_begin < slice * SLICES;
}

static void own(uintptr_t at, size_t bytes)
{
    (void)at;
    (void)bytes;
}
#else
enum { SIZES = 512, DEPTH = 256, OWNED = 1 << 16 };

/* The blocks of one size that this thread freed. */
struct stack {
    size_t bytes;
    unsigned count;
    uintptr_t blocks[DEPTH];
};

/* SIZES of them, made when a thread needs them: so much room in each thread's own data would make
 * small threads impossible. */
static __thread struct stack *stacks;

/* Sizes of all blocks that were ever taken from the driver; entries are never removed. */
static struct {
    _Atomic uintptr_t at;
    size_t bytes;
} owned[OWNED];

static uint64_t hash(uint64_t key, unsigned bits)
{
    return key * 0x9e3779b97f4a7c15u >> (64 - bits);
}

static struct stack *stack_of(size_t bytes)
{
    struct stack *stack;

    if (!stacks && !(stacks = calloc(SIZES, sizeof(stacks[0]))))
        return NULL;
    stack = &stacks[hash(bytes, 9)];
    if (!stack->count)
        stack->bytes = bytes;
    return stack->bytes == bytes ? stack : NULL;
}

static uintptr_t take(size_t bytes)
{
    struct stack *stack = stack_of(bytes);

    return stack && stack->count ? stack->blocks[--stack->count] : 0;
}

static void own(uintptr_t at, size_t bytes)
{
    for (uint64_t i = hash(at, 16), tries = 0; tries < OWNED; i = (i + 1) % OWNED, tries++) {
        uintptr_t none = 0;
        if (atomic_load(&owned[i].at) != at &&
            !atomic_compare_exchange_strong(&owned[i].at, &none, at))
            continue;
        owned[i].bytes = bytes;
        return;
    }
}

static bool give(uintptr_t at)
{
    struct stack *stack = NULL;
    uintptr_t found;

    for (uint64_t i = hash(at, 16); (found = atomic_load(&owned[i].at)); i = (i + 1) % OWNED)
        if (found == at) {
            stack = stack_of(owned[i].bytes);
            break;
        }
    if (!stack || stack->count == DEPTH)
        return false;
    stack->blocks[stack->count++] = at;
    return true;
}
#endif

/* ---- doors ---- */

typedef int (*runtime_malloc)(void **, size_t);
typedef int (*runtime_free)(void *);
typedef CUresult (*driver_malloc)(CUdeviceptr *, size_t);
typedef CUresult (*driver_free)(CUdeviceptr);
typedef CUresult (*get_proc_address)(const char *, void **, int, cuuint64_t,
                                     CUdriverProcAddressQueryResult *);

static struct {
    runtime_malloc runtime_malloc;
    runtime_free runtime_free;
    driver_malloc driver_malloc;
    driver_free driver_free;
    get_proc_address get_proc_address;
} real;

PUBLIC int cudaMalloc(void **address, size_t bytes);
PUBLIC int cudaFree(void *address);
PUBLIC void *dlsym(void *handle, const char *name);

static void *real_dlsym(void *handle, const char *name)
{
    static void *(*function)(void *, const char *);

    if (!function)
        *(void **)&function = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
    if (!function)
        *(void **)&function = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    return function(handle, name);
}

PUBLIC int cudaMalloc(void **address, size_t bytes)
{
    uintptr_t at = take(bytes);
    int result = 0;

    if (at) {
        *address = (void *)at;
        return 0;
    }
    if (!real.runtime_malloc)
        *(void **)&real.runtime_malloc = real_dlsym(RTLD_NEXT, "cudaMalloc");
    result = real.runtime_malloc(address, bytes);
    if (result == 0 && bytes)
        own((uintptr_t)*address, bytes);
    return result;
}

PUBLIC int cudaFree(void *address)
{
    if (address && give((uintptr_t)address))
        return 0;
    if (!real.runtime_free)
        *(void **)&real.runtime_free = real_dlsym(RTLD_NEXT, "cudaFree");
    return real.runtime_free(address);
}

static CUresult mem_alloc(CUdeviceptr *address, size_t bytes)
{
    uintptr_t at = take(bytes);
    CUresult result;

    if (at) {
        *address = at;
        return CUDA_SUCCESS;
    }
    result = real.driver_malloc(address, bytes);
    if (result == CUDA_SUCCESS)
        own(*address, bytes);
    return result;
}

static CUresult mem_free(CUdeviceptr address)
{
    return give(address) ? CUDA_SUCCESS : real.driver_free(address);
}

static CUresult look_up(const char *name, void **function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status);

static void translate(const char *name, void **function)
{
    if (strcmp(name, "cuGetProcAddress_v2") == 0) {
        *(void **)&real.get_proc_address = *function;
        *function = (void *)look_up;
    } else if (strcmp(name, "cuMemAlloc") == 0) {
        *(void **)&real.driver_malloc = *function;
        *function = (void *)mem_alloc;
    } else if (strcmp(name, "cuMemFree") == 0) {
        *(void **)&real.driver_free = *function;
        *function = (void *)mem_free;
    }
}

static CUresult look_up(const char *name, void **function, int version, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *status)
{
    CUresult result = real.get_proc_address(name, function, version, flags, status);

    if (result != CUDA_SUCCESS || !*function)
        return result;
    if (strcmp(name, "cuGetProcAddress") == 0 && version >= 12000)
        translate("cuGetProcAddress_v2", function);
    else if (version >= 3020)
        translate(name, function);
    return result;
}

/* The first version of cuGetProcAddress, by which the second is found. */
static CUresult look_up_first(const char *name, void **function, int version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status;

    if (!real.get_proc_address)
        return CUDA_ERROR_NOT_FOUND;
    return look_up(name, function, version, flags, &status);
}

PUBLIC void *dlsym(void *handle, const char *name)
{
    void *found = real_dlsym(handle, name);

    if (!found || handle == RTLD_NEXT || handle == RTLD_DEFAULT || found == (void *)cudaMalloc ||
        found == (void *)cudaFree)
        return found;
    if (strcmp(name, "cudaMalloc") == 0) {
        *(void **)&real.runtime_malloc = found;
        return (void *)cudaMalloc;
    }
    if (strcmp(name, "cudaFree") == 0) {
        *(void **)&real.runtime_free = found;
        return (void *)cudaFree;
    }
    if (strcmp(name, "cuGetProcAddress_v2") == 0)
        translate(name, &found);
    if (strcmp(name, "cuGetProcAddress") == 0) {
        *(void **)&real.get_proc_address = real_dlsym(handle, "cuGetProcAddress_v2");
        if (real.get_proc_address)
            return (void *)look_up_first;
    }
    if (strcmp(name, "cuMemAlloc_v2") == 0)
        translate("cuMemAlloc", &found);
    else if (strcmp(name, "cuMemFree_v2") == 0)
        translate("cuMemFree", &found);
    return found;
}
