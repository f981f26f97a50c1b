/* SPDX-License-Identifier: Apache-2.0 */
/* A program with one deliberate bug, and the same program without it: called with "bug" or "fixed".
 * It succeeds if the device reported the bug by name, or reported nothing about the fixed one. */
#pragma once

#include "hostcuda.h"

#include <cuda.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                                                                   \
    do {                                                                                           \
        int result_ = (int)(call);                                                                 \
        if (result_) {                                                                             \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, result_);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static inline bool wants_bug(int argc, char **argv)
{
    return argc == 2 && !strcmp(argv[1], "bug");
}

static inline CUcontext begin(void)
{
    CUcontext ctx;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    return ctx;
}

static inline CUresult launch(const char *name, CUstream stream, void **args)
{
    static CUmodule module;
    CUfunction function;
    if (!module)
        OK(cuModuleLoadData(&module, "hostcuda"));
    OK(cuModuleGetFunction(&function, module, name));
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

static inline void fill32(CUstream stream, CUdeviceptr words, size_t count, unsigned value)
{
    void *args[] = {&words, &count, &value};
    OK(launch("fill32", stream, args));
}

/* A pool of one block: hand_out and take_back tell the detector what the driver cannot see. */
static inline CUdeviceptr hand_out(CUdeviceptr memory, size_t bytes)
{
    hostcuda_note_allocate((void *)memory, bytes);
    return memory;
}

static inline void take_back(CUdeviceptr block)
{
    hostcuda_note_free((void *)block);
}

/* All work is done, for the schedule is stepped. The bug is that the program has not synchronised
 * with it. */
static inline void luck(void)
{
    while (hostcuda_step(NULL))
        ;
}

/* Returns the program's exit status. */
static inline int caught(bool bug, const char *what)
{
    const char *last = hostcuda_race_last();
    bool is_right = bug ? last && !strcmp(last, what) : !last;
    if (!is_right)
        fprintf(stderr, "expected: %s, reported: %s\n", bug ? what : "nothing",
                last ? last : "nothing");
    hostcuda_race_reset();
    return !is_right;
}
