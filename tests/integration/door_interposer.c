/* SPDX-License-Identifier: Apache-2.0 */
/* Another preloaded library that defines cudaMalloc and cudaFree: counts the calls and passes them
 * to the next definition.  Writes its counts at the end to the file DOOR_COUNTS.  With DOOR_KEEPS
 * it keeps a block from the first call on, and gives it back before a large request. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEPT_BYTES = 48 << 20, LARGE_BYTES = 32 << 20 };

static unsigned mallocs, frees;

/* As caching allocators do. */
static void keep_or_give_back(cudaError_t (*next)(void **, size_t), size_t bytes)
{
    static void *kept;
    cudaError_t (*next_free)(void *);

    if (!getenv("DOOR_KEEPS") || !next)
        return;
    *(void **)&next_free = dlsym(RTLD_NEXT, "cudaFree");
    if (bytes >= LARGE_BYTES && kept)
        kept = next_free(kept) == cudaSuccess ? NULL : kept;
    else if (!kept && next(&kept, KEPT_BYTES) != cudaSuccess)
        kept = NULL;
}

__attribute__((visibility("default"))) cudaError_t cudaMalloc(void **address, size_t bytes)
{
    static cudaError_t (*next)(void **, size_t);
    cudaError_t result;

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "cudaMalloc");
    mallocs++;
    keep_or_give_back(next, bytes);
    result = next ? next(address, bytes) : cudaErrorUnknown;
    return result;
}

__attribute__((visibility("default"))) cudaError_t cudaFree(void *address)
{
    static cudaError_t (*next)(void *);
    cudaError_t result;

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "cudaFree");
    frees++;
    result = next ? next(address) : cudaErrorUnknown;
    return result;
}

__attribute__((destructor)) static void write_counts(void)
{
    const char *path = getenv("DOOR_COUNTS");
    FILE *file = path ? fopen(path, "a") : NULL;

    if (!file)
        return;
    fprintf(file, "interposer %u mallocs %u frees\n", mallocs, frees);
    fclose(file);
}
