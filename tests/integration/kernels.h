/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the CUDA device in host memory, launched by name on the driver API. */
#pragma once

#include "../samples/sample.h"

#include <cuda.h>
#include <pthread.h>

static inline CUfunction kernel_named(const char *name)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static CUmodule module;
    CUfunction function;

    pthread_mutex_lock(&lock);
    if (!module)
        MUST(cuModuleLoadData(&module, "hostcuda"));
    MUST(cuModuleGetFunction(&function, module, name));
    pthread_mutex_unlock(&lock);
    return function;
}

static inline void launch(const char *name, CUstream stream, void **args)
{
    MUST(cuLaunchKernel(kernel_named(name), 1, 1, 1, 1, 1, 1, 0, stream, args, NULL));
}

/* words[0..count) = value */
static inline void fill32(CUstream stream, CUdeviceptr words, size_t count, unsigned value)
{
    size_t value_argument = value;
    void *args[] = {&words, &count, &value_argument};

    launch("fill32", stream, args);
}

static inline void add_one(CUstream stream, CUdeviceptr words, size_t count)
{
    void *args[] = {&words, &count};

    launch("add_one", stream, args);
}

/* The stream stops here until the flag is raised. */
static inline void spin_until(CUstream stream, const unsigned *flag)
{
    void *args[] = {&flag};

    launch("spin_until", stream, args);
}

/* A flag in pinned memory, lowered. */
static inline unsigned *flag_new(void)
{
    void *flag;

    MUST(cuMemHostAlloc(&flag, sizeof(unsigned), CU_MEMHOSTALLOC_PORTABLE));
    __atomic_store_n((unsigned *)flag, 0, __ATOMIC_SEQ_CST);
    return flag;
}

static inline void flag_set(unsigned *flag, unsigned value)
{
    __atomic_store_n(flag, value, __ATOMIC_SEQ_CST);
}
