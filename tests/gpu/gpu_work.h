/* SPDX-License-Identifier: Apache-2.0 */
/* What reuse_safety and free_latency share: two more kernels, launches, a watchdog.
 *
 *   hold32(ptr, n, value, us)    ptr[0..n) = value again and again for that long, then once more
 *   spin_until(flag)             until the host makes the 32-bit word other than 0
 *
 * The device in host memory has both built in.  Kernels come from a library (cuLibraryLoadData), so
 * that one handle serves every context, green ones included. */
#pragma once

#include "kernels.h"
#include "sample.h"

#include <cuda.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char gpu_work_ptx[] =
    ".version 6.4\n"
    ".target sm_50\n"
    ".address_size 64\n"

    ".visible .entry hold32(.param .u64 ptr, .param .u64 n, .param .u64 value, .param .u64 us)\n"
    "{\n"
    " .reg .pred done, late; .reg .u32 a, b, c, v;\n"
    " .reg .u64 first, i, count, step, t, at, until, now;\n"
    " ld.param.u64 at, [ptr]; ld.param.u64 count, [n];\n"
    " ld.param.u64 t, [value]; cvt.u32.u64 v, t;\n"
    " ld.param.u64 until, [us]; mul.lo.u64 until, until, 1000;\n"
    " mov.u64 now, %globaltimer; add.u64 until, until, now;\n"
    " mov.u32 a, %ctaid.x; mov.u32 b, %ntid.x; mov.u32 c, %tid.x;\n"
    " mad.lo.u32 a, a, b, c; cvt.u64.u32 first, a;\n"
    " mov.u32 c, %nctaid.x; mul.lo.u32 b, b, c; cvt.u64.u32 step, b;\n"
    "again:\n"
    " mov.u64 now, %globaltimer; mov.u64 i, first;\n"
    "more:\n"
    " setp.ge.u64 done, i, count;\n"
    " @done bra filled;\n"
    " shl.b64 t, i, 2; add.u64 t, t, at;\n"
    " st.volatile.global.u32 [t], v;\n"
    " add.u64 i, i, step;\n"
    " bra more;\n"
    "filled:\n"
    " setp.lt.u64 late, now, until;\n"
    " @late bra again;\n"
    " ret;\n"
    "}\n"

    ".visible .entry spin_until(.param .u64 flag)\n"
    "{\n"
    " .reg .pred unset; .reg .u32 v; .reg .u64 at;\n"
    " ld.param.u64 at, [flag];\n"
    "more:\n"
    " ld.volatile.global.u32 v, [at]; setp.eq.u32 unset, v, 0;\n"
    " @unset bra more;\n"
    " ret;\n"
    "}\n";

static struct {
    CUfunction fill32, check_pattern, spin_us, hold32, spin_until;
} kernels;

static CUfunction gpu_work_kernel(CUlibrary library, const char *name)
{
    CUkernel kernel;

    MUST(cuLibraryGetKernel(&kernel, library, name));
    return (CUfunction)kernel;
}

/* With a context current. */
static void gpu_work_load(void)
{
    CUlibrary common, own;

    MUST(cuLibraryLoadData(&common, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    MUST(cuLibraryLoadData(&own, gpu_work_ptx, NULL, NULL, 0, NULL, NULL, 0));
    kernels.fill32 = gpu_work_kernel(common, "fill32");
    kernels.check_pattern = gpu_work_kernel(common, "check_pattern");
    kernels.spin_us = gpu_work_kernel(common, "spin_us");
    kernels.hold32 = gpu_work_kernel(own, "hold32");
    kernels.spin_until = gpu_work_kernel(own, "spin_until");
}

/* Few blocks: several kernels are to run side by side, also on a part of a device. */
static void launch(CUfunction kernel, CUstream stream, void **parameters)
{
    unsigned blocks = kernel == kernels.spin_us || kernel == kernels.spin_until ? 1 : 16;

    MUST(cuLaunchKernel(kernel, blocks, 1, 1, blocks == 1 ? 1 : KERNEL_THREADS, 1, 1, 0, stream,
                        parameters, NULL));
}

static inline void fill(CUstream stream, CUdeviceptr block, uint64_t words, uint64_t value)
{
    launch(kernels.fill32, stream, (void *[]){&block, &words, &value});
}

static inline void hold(CUstream stream, CUdeviceptr block, uint64_t words, uint64_t value,
                        uint64_t us)
{
    launch(kernels.hold32, stream, (void *[]){&block, &words, &value, &us});
}

static inline void check(CUstream stream, CUdeviceptr block, uint64_t words, uint64_t value,
                         CUdeviceptr counter)
{
    launch(kernels.check_pattern, stream, (void *[]){&block, &words, &value, &counter});
}

static inline void spin(CUstream stream, uint64_t us)
{
    launch(kernels.spin_us, stream, (void *[]){&us});
}

static inline uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- a program that hangs ends, and says where ---- */

static const char *volatile watched_scene = "start";

static void watchdog_bark(int number)
{
    static const char text[] = "HANG in ";

    (void)number;
    (void)!write(STDOUT_FILENO, text, sizeof(text) - 1);
    (void)!write(STDOUT_FILENO, watched_scene, strlen(watched_scene));
    (void)!write(STDOUT_FILENO, "\n", 1);
    _exit(3);
}

static void watchdog(const char *scene, unsigned seconds)
{
    watched_scene = scene;
    signal(SIGALRM, watchdog_bark);
    alarm(seconds);
}
