/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of this folder. */
#pragma once

#include "../unit/unit.h"

#include <cuda.h>

#define OK(call) assert_int_equal((call), 0)

/* Makes device 0's primary context current on this thread and returns it. */
static inline CUcontext use_primary(void)
{
    CUcontext ctx;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    return ctx;
}

static inline void drop_primary(void)
{
    OK(cuCtxSetCurrent(NULL));
    OK(cuDevicePrimaryCtxRelease(0));
}

static inline CUfunction kernel_named(const char *name)
{
    static CUmodule module;
    CUfunction function;
    if (!module)
        OK(cuModuleLoadData(&module, "hostcuda"));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static inline CUresult launch(const char *name, CUstream stream, void **args)
{
    return cuLaunchKernel(kernel_named(name), 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

static inline CUresult fill32(CUstream stream, CUdeviceptr words, size_t count, unsigned value)
{
    void *args[] = {&words, &count, &value};
    return launch("fill32", stream, args);
}

static inline CUresult spin_us(CUstream stream, size_t microseconds)
{
    void *args[] = {&microseconds};
    return launch("spin_us", stream, args);
}

static inline CUresult spin_until(CUstream stream, const unsigned *flag)
{
    void *args[] = {&flag};
    return launch("spin_until", stream, args);
}

/* Returns a new flag, in pinned memory, for spin_until. */
static inline unsigned *flag_new(void)
{
    void *flag;
    OK(cuMemHostAlloc(&flag, sizeof(unsigned), 0));
    __atomic_store_n((unsigned *)flag, 0, __ATOMIC_SEQ_CST);
    return flag;
}

static inline void flag_raise(unsigned *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
}
