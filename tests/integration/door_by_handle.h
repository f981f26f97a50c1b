/* SPDX-License-Identifier: Apache-2.0 */
/* For code that opens a CUDA runtime (DOOR_RUNTIME) and looks its functions up, as XLA does. */
#pragma once

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cudaError_t (*handle_malloc)(void **, size_t);
static cudaError_t (*handle_free)(void *);
static cudaError_t (*handle_malloc_managed)(void **, size_t, unsigned);
static cudaError_t (*handle_get_last_error)(void);

static void *door_find(void *runtime, const char *name)
{
    void *found = dlsym(runtime, name);
    const char *error = dlerror(); /* after a look-up that found, there is none */

    if (!found != !!error)
        printf("%s: %s, yet %s\n", name, found ? "found" : "not found", error ? error : "no error");
    return found;
}

/* Prints whose cudaMalloc the runtime's is. */
static void door_open_runtime(void)
{
    void *runtime = dlopen(getenv("DOOR_RUNTIME"), RTLD_NOW | RTLD_LOCAL);
    Dl_info info;

    if (!runtime) {
        printf("%s\n", dlerror());
        exit(2);
    }
    *(void **)&handle_malloc = door_find(runtime, "cudaMalloc");
    *(void **)&handle_free = door_find(runtime, "cudaFree");
    *(void **)&handle_malloc_managed = door_find(runtime, "cudaMallocManaged");
    *(void **)&handle_get_last_error = door_find(runtime, "cudaGetLastError");
    if (getenv("DOOR_OWNER") && dladdr(*(void **)&handle_malloc, &info))
        printf("cudaMalloc is in %s\n", strrchr(info.dli_fname, '/') + 1);
}

#define cudaMalloc        handle_malloc
#define cudaFree          handle_free
#define cudaMallocManaged handle_malloc_managed
#define cudaGetLastError  handle_get_last_error
