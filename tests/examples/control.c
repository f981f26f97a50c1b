/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim from C: the functions are looked up, so that the program also starts without the library.
 *
 *   cc control.c -I include -lcuda -o control
 *   LD_PRELOAD=librmmshim.so RMM_POOL_SIZE=64MiB ./control */
#include "rmmshim/rmmshim.h"

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void ok(CUresult result)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "CUDA error %d\n", (int)result);
    exit(1);
}

static struct {
    __typeof__(&rmmshim_get_statistics) get_statistics;
    __typeof__(&rmmshim_push_resource) push_resource;
    __typeof__(&rmmshim_pop_resource) pop_resource;
    __typeof__(&rmmshim_trim) trim;
    __typeof__(&rmmshim_mark) mark;
    __typeof__(&rmmshim_last_error) last_error;
} rmmshim;

/* False when the library is not there. */
static int look_up(void)
{
    void *found;

#define FIND(name)                                                                                 \
    found = dlsym(RTLD_DEFAULT, "rmmshim_" #name);                                                 \
    if (!found)                                                                                    \
        return 0;                                                                                  \
    memcpy(&rmmshim.name, &found, sizeof(found));
    FIND(get_statistics)
    FIND(push_resource)
    FIND(pop_resource)
    FIND(trim)
    FIND(mark)
    FIND(last_error)
#undef FIND
    return 1;
}

static void say(const char *when)
{
    struct rmmshim_statistics now = {.size = sizeof(now)};

    if (rmmshim.get_statistics(0, &now) != 0)
        printf("%s: %s\n", when, rmmshim.last_error());
    else
        printf("%s: used %llu MiB of %llu MiB, peak %llu MiB\n", when,
               (unsigned long long)now.used_bytes / MIB, (unsigned long long)now.total_bytes / MIB,
               (unsigned long long)now.peak_used_bytes / MIB);
}

int main(void)
{
    CUdeviceptr a, b;
    CUcontext context;

    if (!look_up()) {
        printf("rmmshim is not preloaded\n");
        return 0;
    }
    say("before CUDA starts");
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxSetCurrent(context));
    ok(cuMemAlloc(&a, 8 * MIB));
    (void)rmmshim.mark("one block"); /* beside the event log, where RMM_LOG asks for one */
    say("with one block");
    if (rmmshim.push_resource("pool(cuda, maximum_size=32MiB)") != 0)
        printf("%s\n", rmmshim.last_error());
    ok(cuMemAlloc(&b, 24 * MIB));
    (void)rmmshim.pop_resource();
    say("with a pool of its own");
    ok(cuMemFree(a));
    ok(cuMemFree(b));
    ok(cuCtxSynchronize());
    (void)rmmshim.trim(0, 0);
    say("after all");
    return 0;
}
