/* SPDX-License-Identifier: Apache-2.0 */
/* Another preloaded library that defines cudaMalloc and cudaFree: counts the calls and passes them
 * to the next definition.  Writes its counts at the end to the file DOOR_COUNTS. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned mallocs, frees;

__attribute__((visibility("default"))) cudaError_t cudaMalloc(void **address, size_t bytes)
{
    static cudaError_t (*next)(void **, size_t);
    cudaError_t result;

    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "cudaMalloc");
    mallocs++;
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
