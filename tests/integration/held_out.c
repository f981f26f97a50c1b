/* SPDX-License-Identifier: Apache-2.0 */
/* Threads beside something that takes long: a context's end, or a kernel that waits for the host.
 * They get what the driver alone would give them.
 *
 *   held_out SCENE     prints "ok", or what is wrong */
#include "device_work.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#pragma weak hostcuda_request_begin
#pragma weak hostcuda_request_end

enum {
    MIB = 1 << 20,
    SMALL_BYTES = MIB,
    LARGE_MIB = 600 /* of a device of 1 GiB */,
    KEPT_MIB = 64
};

static CUdevice device;
static unsigned *flag;

static CUcontext retain(void)
{
    CUcontext context;

    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, bytes));
    return block;
}

static pthread_t start(void *(*run)(void *data), void *data)
{
    pthread_t thread;

    CHECK(pthread_create(&thread, NULL, run, data) == 0);
    return thread;
}

static void finish(pthread_t thread)
{
    CHECK(pthread_join(thread, NULL) == 0);
}

/* The current context works until the flag is raised. */
static void work(void)
{
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    stop_at(stream, flag);
}

/* ---- beside a context's end ---- */

static void *destroy(void *context)
{
    MUST(cuCtxDestroy(context));
    return NULL;
}

/* A context that works is destroyed; this returns when the driver has the call. */
static pthread_t destroy_working(CUcontext context)
{
    unsigned long long before = hostcuda_call_count("cuCtxDestroy_v2");
    pthread_t thread = start(destroy, context);

    while (hostcuda_call_count("cuCtxDestroy_v2") == before)
        sched_yield();
    return thread;
}

static CUresult create_physical(void)
{
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemGenericAllocationHandle handle;
    CUresult result = cuMemCreate(&handle, (size_t)LARGE_MIB * MIB, &properties, 0);

    if (result == CUDA_SUCCESS)
        MUST(cuMemRelease(handle));
    return result;
}

static CUresult create_array(void)
{
    CUDA_ARRAY_DESCRIPTOR description = {
        .Width = 16384, .Height = 9600, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray array;
    CUresult result = cuArrayCreate(&array, &description);

    if (result == CUDA_SUCCESS)
        MUST(cuArrayDestroy(array));
    return result;
}

static CUresult allocate_in_order(void)
{
    CUdeviceptr block;
    CUresult result = cuMemAllocAsync(&block, (size_t)LARGE_MIB * MIB, NULL);

    if (result == CUDA_SUCCESS) {
        MUST(cuMemFreeAsync(block, NULL));
        MUST(cuStreamSynchronize(NULL));
    }
    return result;
}

/* What another context of the device, which does not end, has idle serves each way to take memory
 * at once, though no end of this one is in sight. */
static void idle_beside_an_end(void)
{
    CUcontext primary = retain(), other, ending;
    CUdeviceptr block;
    pthread_t thread;

    gpu_work_load();
    MUST(cuCtxCreate_v2(&other, 0, device));
    MUST(cuCtxCreate_v2(&ending, 0, device));
    block = allocate(SMALL_BYTES); /* the context has a stack, and can be found busy */
    MUST(cuMemFree(block));
    work();
    MUST(cuCtxSetCurrent(primary));
    block = allocate((size_t)LARGE_MIB * MIB);
    thread = destroy_working(ending);
    MUST(cuMemFree(block));
    CHECK(create_physical() == CUDA_SUCCESS);
    MUST(cuMemFree(allocate((size_t)LARGE_MIB * MIB)));
    CHECK(create_array() == CUDA_SUCCESS);
    block = allocate((size_t)LARGE_MIB * MIB);
    MUST(cuMemFree(block));
    MUST(cuCtxSetCurrent(other));
    MUST(cuMemFree(allocate((size_t)LARGE_MIB * MIB)));
    CHECK(allocate_in_order() == CUDA_SUCCESS);
    CHECK(pthread_tryjoin_np(thread, NULL) != 0);
    flag_raise(flag);
    finish(thread);
}

static void *raise_later(void *data)
{
    /* No race is won by this: the request may wait for 15 s.  It is longer than any single wait. */
    nanosleep(&(struct timespec){2, 500 * 1000 * 1000}, NULL);
    flag_raise(flag);
    return data;
}

/* Memory that lies idle in the context that ends comes back with it: whoever needs it waits. */
static void idle_in_what_ends(void)
{
    CUcontext primary = retain(), ending;
    pthread_t thread, raiser;
    CUdeviceptr block;

    gpu_work_load();
    MUST(cuCtxCreate_v2(&ending, 0, device));
    block = allocate((size_t)LARGE_MIB * MIB);
    MUST(cuMemFree(block)); /* with the driver alone it would wait for the work */
    work();
    MUST(cuCtxSetCurrent(primary));
    thread = destroy_working(ending);
    raiser = start(raise_later, NULL);
    CHECK(create_physical() == CUDA_SUCCESS);
    finish(thread);
    finish(raiser);
    block = allocate((size_t)LARGE_MIB * MIB);
    MUST(cuMemFree(block));
}

/* ---- beside a trim ---- */

static size_t trim(void)
{
    static size_t (*function)(int device, size_t keep_bytes);
    void *found = dlsym(RTLD_DEFAULT, "rmmshim_trim");
    size_t bytes;

    CHECK(found);
    memcpy(&function, &found, sizeof(function));
    hostcuda_request_begin(); /* it must not wait for work that it has not seen done */
    bytes = function(device, 0);
    hostcuda_request_end();
    return bytes;
}

static void *trim_once(void *bytes)
{
    *(size_t *)bytes = trim();
    return NULL;
}

/* Calls that a trim of a working context makes: looks whether it works, or frees. */
static unsigned long long trim_calls(void)
{
    return hostcuda_call_count("cuCtxRecordEvent") + hostcuda_call_count("cuMemFree_v2") +
           hostcuda_call_count("cuMemFreeHost");
}

/* While one thread trims a context with a kernel that waits for the host, this one ends other
 * contexts, begins new ones, allocates in them and there, and gives up a reference.  Then the
 * kernel ends, and what it kept from going back goes back. */
static void trim_beside_a_kernel(void)
{
    CUcontext working, destroyed, primary = retain(), created;
    unsigned long long before;
    CUdeviceptr block, taken[3];
    size_t bytes = 0;
    pthread_t thread;
    void *host;

    gpu_work_load();
    MUST(cuCtxCreate_v2(&destroyed, 0, device));
    MUST(cuMemFree(allocate(SMALL_BYTES)));
    MUST(cuCtxCreate_v2(&working, 0, device));
    block = allocate((size_t)KEPT_MIB * MIB);
    MUST(cuMemFree(block));
    MUST(cuMemHostAlloc(&host, (size_t)KEPT_MIB * MIB, 0));
    MUST(cuMemFreeHost(host));
    MUST(cuCtxSynchronize());
    work();
    before = trim_calls();
    thread = start(trim_once, &bytes);
    while (trim_calls() == before)
        sched_yield();
    (void)retain();
    taken[0] = allocate(SMALL_BYTES); /* the first here: the primary context is looked up */
    MUST(cuDevicePrimaryCtxRelease(device));
    MUST(cuCtxDestroy(destroyed));
    MUST(cuCtxCreate_v2(&created, 0, device));
    taken[1] = allocate(SMALL_BYTES);
    MUST(cuCtxSetCurrent(working));
    taken[2] = allocate(SMALL_BYTES);
    flag_raise(flag);
    finish(thread);
    MUST(cuCtxSynchronize());
    for (int i = 0; i < 3; i++)
        MUST(cuMemFree(taken[i]));
    while (bytes < (size_t)KEPT_MIB * MIB / 2) /* what was taken meanwhile is taken off */
        bytes += trim();
    MUST(cuCtxDestroy(created));
    MUST(cuCtxSetCurrent(primary));
}

/* A trim while the context of the trimmed memory works leaves what only a waiting call gives back,
 * and returns; and the extra reference to that very context can be given up meanwhile. */
static void trim_and_release(void)
{
    CUcontext primary = retain();
    unsigned long long before;
    size_t bytes = 0;
    pthread_t thread;
    void *host;

    CHECK(primary == retain());
    gpu_work_load();
    MUST(cuMemHostAlloc(&host, (size_t)KEPT_MIB * MIB, 0));
    MUST(cuMemFreeHost(host));
    MUST(cuCtxSynchronize());
    work();
    before = trim_calls();
    thread = start(trim_once, &bytes);
    while (trim_calls() == before)
        sched_yield();
    MUST(cuDevicePrimaryCtxRelease(device));
    finish(thread);
    CHECK(bytes == 0);
    flag_raise(flag);
    MUST(cuCtxSynchronize());
    while (bytes < (size_t)KEPT_MIB * MIB)
        bytes += trim();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {
        {"idle_beside_an_end", idle_beside_an_end},
        {"idle_in_what_ends", idle_in_what_ends},
        {"trim_beside_a_kernel", trim_beside_a_kernel},
        {"trim_and_release", trim_and_release},
    };
    CUcontext context;

    setvbuf(stdout, NULL, _IONBF, 0);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuCtxCreate_v2(&context, 0, device));
    flag = flag_new(); /* in a context that stays */
    for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (!strcmp(argv[1], scenes[i].name)) {
            watchdog(argv[1], ENOUGH_S);
            scenes[i].run();
            puts("ok");
            return 0;
        }
    fprintf(stderr, "usage: held_out SCENE\n");
    return 2;
}
