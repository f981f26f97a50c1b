/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that outputs must not disturb.  Each scene prints the same with and without the library.
 *
 *   outputs SCENE [ARGUMENT] */
#include "../samples/sample.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 5000, PAIRS = 4000 };

static CUcontext context;

static void begin(void)
{
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
}

static CUdeviceptr allocate(void)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, BYTES));
    return block;
}

/* More rows of a log than its buffer takes. */
static void pairs(void)
{
    for (int i = 0; i < PAIRS; i++)
        MUST(cuMemFree(allocate()));
}

/* A program that no file may grow for, and whose memory another process is to open.  It sets the
 * limit itself, as the device in host memory needs files of its own. */
static void limited(void)
{
    static const struct rlimit none = {0, 0};
    CUipcMemHandle handle;
    CUdeviceptr block;

    begin();
    block = allocate();
    MUST(setrlimit(RLIMIT_FSIZE, &none));
    pairs();
    (void)cuIpcGetMemHandle(&handle, block); /* may be refused */
    printf("done\n");
}

/* ---- threads that are cancelled: each call comes back, as the driver's own does ---- */

static const char *phase;

static void make_many(void)
{
    CUdeviceptr blocks[64];
    int made = 0;

    while (made < 64 && cuMemAlloc(&blocks[made], 4 << 20) == CUDA_SUCCESS)
        made++;
    for (int i = 0; i < made; i++)
        MUST(cuMemFree(blocks[i]));
}

static void *cancel_itself(void *data)
{
    MUST(pthread_cancel(pthread_self())); /* acts at the next cancellation point, whosever it is */
    begin();
    pairs();
    make_many();
    MUST(cuDevicePrimaryCtxReset(0));
    begin();
    pairs();
    phase = "all calls came back";
    pthread_testcancel();
    phase = "it was not cancelled";
    return data;
}

static void cancelled(void)
{
    void *result = NULL;
    pthread_t thread;

    phase = "a call did not come back";
    MUST(pthread_create(&thread, NULL, cancel_itself, NULL));
    MUST(pthread_join(thread, &result));
    printf("%s; %s\n", phase, result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
    begin();
    pairs();
    printf("done\n");
}

/* ---- stacks of many words ---- */

/* Small stacks, each of other words, whose counters come together at the context's end. */
static void pushed(void)
{
    static const char *const texts[] = {
        "statistics(limiting(pool(cuda), limit=1GiB))",
        "tracking(aligned(arena(cuda, arena_size=16MiB)))",
        "binning(fixed_size(async))",
        "poison(prefetch(managed))",
        "headroom(fallback(virtual, pinned), headroom=1MiB)",
        "limiting(async_managed, limit=1GiB)",
        "statistics(binning(pool(managed)))",
    };
    int (*push)(const char *expression) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "rmmshim_push_resource");

    memcpy(&push, &found, sizeof(push));
    begin();
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (push)
            MUST(push(texts[i]));
        MUST(cuMemFree(allocate()));
    }
    MUST(cuDevicePrimaryCtxReset(0));
    begin();
    pairs();
    printf("done\n");
}

/* ---- large reports ---- */

/* All kinds of memory on all devices. */
static void everywhere(void)
{
    CUdeviceptr block;
    int devices = 0;
    void *host;

    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&devices));
    for (int device = 0; device < devices; device++) {
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
        MUST(cuMemFree(allocate()));
        MUST(cuMemAllocHost(&host, BYTES));
        MUST(cuMemFreeHost(host));
        MUST(cuMemAllocManaged(&block, BYTES, CU_MEM_ATTACH_GLOBAL));
        MUST(cuMemFree(block));
    }
}

/* A block that finds no room where the others lie, on all devices. */
static void full(void)
{
    CUdeviceptr block;
    int devices = 0;

    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&devices));
    for (int device = 0; device < devices; device++) {
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
        (void)allocate();
        MUST(cuMemAlloc(&block, 16 << 20));
        MUST(cuMemFree(block));
    }
}

static void recurse(int depth)
{
    if (depth > 0)
        recurse(depth - 1);
    else
        (void)allocate();
    __asm__ volatile("" ::: "memory"); /* no tail call */
}

/* From call sites with many frames, on all devices. */
static void leaks(void)
{
    int devices = 0;

    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&devices));
    for (int device = 0; device < devices; device++) {
        MUST(cuDevicePrimaryCtxRetain(&context, device));
        MUST(cuCtxSetCurrent(context));
        for (int depth = 0; depth < 40; depth++)
            recurse(depth);
    }
}

/* ---- exit() in a signal's handler, while the library holds a lock ---- */

static const char *argument, *armed = "";

static void leave(int signal_number)
{
    (void)signal_number;
    exit(9);
}

/* Functions of libc's that the library calls in places that are known: with the lock of a log, of a
 * pool that has grown, of all contexts while a stack is made. */
static void note(const char *place)
{
    if (!strcmp(armed, place))
        raise(SIGUSR1);
}

static void *next_of(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

struct tm *localtime_r(const time_t *time, struct tm *parts)
{
    note("log");
    return gmtime_r(time, parts);
}

int pthread_cond_broadcast(pthread_cond_t *condition)
{
    void *found = next_of("pthread_cond_broadcast");
    int (*next)(pthread_cond_t *);

    note("pool");
    memcpy(&next, &found, sizeof(next));
    return next(condition);
}

int pthread_condattr_setclock(pthread_condattr_t *attributes, clockid_t clock)
{
    void *found = next_of("pthread_condattr_setclock");
    int (*next)(pthread_condattr_t *, clockid_t);

    note("contexts");
    memcpy(&next, &found, sizeof(next));
    return next(attributes, clock);
}

static void left(void)
{
    CUdeviceptr block;

    signal(SIGUSR1, leave);
    begin();
    printf("going\n");
    if (!strcmp(argument, "pool"))
        (void)allocate(); /* which makes the pool, with all contexts' lock held */
    armed = argument;
    (void)cuMemAlloc(&block, 128 << 20); /* more than the pool has */
    printf("the library was not there\n");
    exit(9);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {
        {"limited", limited},       {"cancelled", cancelled}, {"pushed", pushed}, {"left", left},
        {"everywhere", everywhere}, {"full", full},           {"leaks", leaks},
    };

    argument = argc > 2 ? argv[2] : "";
    setvbuf(stdout, NULL, _IONBF, 0);
    for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (!strcmp(argv[1], scenes[i].name)) {
            scenes[i].run();
            return 0;
        }
    fprintf(stderr, "usage: outputs SCENE [ARGUMENT]\n");
    return 2;
}
