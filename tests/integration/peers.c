/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that reach each other's memory: three, or two where there are no more.
 *
 *   peers SCENE       prints "ok", or what is wrong; `refused` also the answers */
#include "device_work.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum {
    DEVICES_MAX = 3,
    BLOCKS = 8,
    WORDS = 50000,
    LARGE_WORDS = 9 << 20, /* 36 MiB: more than a granule */
    ROUNDS = 100,
};

static int devices;
static CUcontext contexts[DEVICES_MAX];

static void enter(int device)
{
    MUST(cuCtxSetCurrent(contexts[device]));
}

static CUdeviceptr allocate(int device, size_t words)
{
    CUdeviceptr block;

    enter(device);
    MUST(cuMemAlloc(&block, words * 4));
    return block;
}

/* The kernel runs on `device` and the block lies anywhere: all of it must be reached. */
static void reach(int device, CUdeviceptr block, size_t words, unsigned value)
{
    unsigned first = 0, last = 0;

    enter(device);
    fill(NULL, block, words, value);
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH(&first, block, 4));
    MUST(cuMemcpyDtoH(&last, block + 4 * (words - 1), 4));
    CHECK(first == value && last == value);
}

/* Ends the use of the device's context: the kernel faults. */
static void reach_in_vain(int device, CUdeviceptr block)
{
    enter(device);
    fill(NULL, block, WORDS, 1);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void enable(int device, int peer)
{
    enter(device);
    MUST(cuCtxEnablePeerAccess(contexts[peer], 0));
}

/* The third device, or where there is none the first. */
static int third(void)
{
    return devices - 1 == 1 ? 0 : 2;
}

static void fill_device(int device, CUdeviceptr blocks[BLOCKS])
{
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = allocate(device, i % 4 == 3 ? LARGE_WORDS : WORDS);
}

static void reach_all(int device, const CUdeviceptr blocks[BLOCKS], unsigned value)
{
    for (int i = 0; i < BLOCKS; i++)
        reach(device, blocks[i], i % 4 == 3 ? LARGE_WORDS : WORDS, value + (unsigned)i);
}

static void free_all(const CUdeviceptr blocks[BLOCKS])
{
    for (int i = 0; i < BLOCKS; i++)
        MUST(cuMemFree(blocks[i]));
}

/* Access is given before there is a stack, and to memory that comes later. */
static void before(void)
{
    CUdeviceptr blocks[BLOCKS], more[BLOCKS];

    enable(0, 1);
    if (third() != 0)
        enable(third(), 1);
    fill_device(1, blocks);
    reach_all(0, blocks, 100);
    reach_all(third(), blocks, 200);
    fill_device(1, more);
    reach_all(0, more, 300);
    free_all(blocks);
    fill_device(1, blocks);
    reach_all(third(), blocks, 400);
    reach_all(third(), more, 500);
    free_all(blocks);
    free_all(more);
}

/* Access is given to memory that is there, and to what comes later. */
static void after(void)
{
    CUdeviceptr blocks[BLOCKS], more[BLOCKS];

    fill_device(1, blocks);
    for (int i = 0; i < BLOCKS; i += 2)
        MUST(cuMemFree(blocks[i]));
    enable(0, 1);
    for (int i = 0; i < BLOCKS; i += 2)
        blocks[i] = allocate(1, i % 4 == 3 ? LARGE_WORDS : WORDS);
    reach_all(0, blocks, 100);
    fill_device(1, more);
    reach_all(0, more, 200);
    reach_all(1, more, 300);
    free_all(blocks);
    free_all(more);
    if (third() != 0)
        reach_in_vain(third(), allocate(1, WORDS));
}

/* And taken back: two contexts of a device may have it, and the first to give it up changes
 * nothing.
 */
static void disabled(void)
{
    CUdeviceptr block = allocate(1, WORDS), later;
    CUcontext first = contexts[0], second;

    enable(0, 1);
    CHECK(cuCtxEnablePeerAccess(contexts[1], 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    MUST(cuCtxCreate_v2(&second, 0, 0));
    contexts[0] = second;
    enable(0, 1);
    reach(0, block, WORDS, 1);
    MUST(cuCtxDisablePeerAccess(contexts[1]));
    contexts[0] = first;
    later = allocate(1, LARGE_WORDS);
    reach(0, block, WORDS, 2);
    reach(0, later, LARGE_WORDS, 3);
    MUST(cuCtxDisablePeerAccess(contexts[1]));
    CHECK(cuCtxDisablePeerAccess(contexts[1]) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    reach(1, later, LARGE_WORDS, 4);
    reach_in_vain(0, block);
}

/* The driver refuses to give access to our memory: so nothing was enabled, and later it is. */
static void refused(void)
{
    CUdeviceptr blocks[BLOCKS];

    fill_device(1, blocks);
    enter(0);
    hostcuda_fault_add("cuMemPoolSetAccess,cuMemSetAccess:count=1:code=801");
    printf("enable %d\n", (int)cuCtxEnablePeerAccess(contexts[1], 0));
    hostcuda_fault_clear();
    printf("disable %d\n", (int)cuCtxDisablePeerAccess(contexts[1]));
    enable(0, 1);
    reach_all(0, blocks, 100);
    free_all(blocks);
}

/* ---- while memory comes, goes and moves ---- */

struct churn {
    pthread_t thread;
    uint64_t seed;
    const bool *stop;
    unsigned *passes;
    CUdeviceptr live[BLOCKS];
};

static void *churn(void *data)
{
    struct churn *churn = data;
    struct sequence sequence = {churn->seed};

    enter(1);
    while (!__atomic_load_n(churn->stop, __ATOMIC_ACQUIRE)) {
        unsigned i = (unsigned)sequence_below(&sequence, BLOCKS);
        if (churn->live[i])
            MUST(cuMemFree(churn->live[i]));
        MUST(cuMemAlloc(&churn->live[i], 4 * (1 + sequence_below(&sequence, LARGE_WORDS / 8))));
        __atomic_fetch_add(churn->passes, 1, __ATOMIC_RELEASE);
    }
    return NULL;
}

static void wait_for_passes(const unsigned *passes, unsigned more)
{
    unsigned begin = __atomic_load_n(passes, __ATOMIC_ACQUIRE);

    while (__atomic_load_n(passes, __ATOMIC_ACQUIRE) - begin < more)
        sched_yield();
}

static void moving(void)
{
    enum { THREADS = 3 };
    static struct churn churns[THREADS];
    unsigned passes = 0;
    bool stop = false;

    MUST(cuMemFree(allocate(1, LARGE_WORDS)));
    for (unsigned i = 0; i < THREADS; i++) {
        churns[i].seed = i;
        churns[i].stop = &stop;
        churns[i].passes = &passes;
        CHECK(pthread_create(&churns[i].thread, NULL, churn, &churns[i]) == 0);
    }
    for (int round = 0; round < 20; round++) {
        enable(0, 1);
        wait_for_passes(&passes, 20);
        enter(0);
        MUST(cuCtxDisablePeerAccess(contexts[1]));
        wait_for_passes(&passes, 20);
    }
    enable(0, 1);
    wait_for_passes(&passes, 20);
    __atomic_store_n(&stop, true, __ATOMIC_RELEASE);
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK(pthread_join(churns[i].thread, NULL) == 0);
        for (int j = 0; j < BLOCKS; j++)
            if (churns[i].live[j])
                reach(0, churns[i].live[j], 1, 7);
    }
}

/* ---- a thread for each device ---- */

struct worker {
    pthread_t thread;
    int device;
};

static pthread_barrier_t all;
static CUdeviceptr shared[DEVICES_MAX];

/* Allocates, checks and frees on its device, hands a block to the next device's thread, and works
 * on the one that it is handed; frees it with its own device current. */
static void *work(void *data)
{
    const struct worker *worker = data;
    int device = worker->device, next = (device + 1) % devices;
    CUdeviceptr blocks[BLOCKS] = {0};
    struct sequence sequence = {(uint64_t)device};
    CUstream stream;

    enable(device, next);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < ROUNDS; round++) {
        unsigned i = (unsigned)sequence_below(&sequence, BLOCKS), value = 0;
        unsigned wanted = 1000 * (unsigned)device + (unsigned)round;
        if (blocks[i])
            MUST(cuMemFree(blocks[i]));
        MUST(cuMemAlloc(&blocks[i], 4 * (WORDS + sequence_below(&sequence, WORDS))));
        fill(stream, blocks[i], WORDS, wanted);
        MUST(cuMemcpyDtoHAsync(&value, blocks[i] + 4 * (WORDS - 1), 4, stream));
        MUST(cuStreamSynchronize(stream));
        CHECK(value == wanted);
        if (round % 10)
            continue;
        shared[device] = blocks[i];
        blocks[i] = 0;
        pthread_barrier_wait(&all);
        add_one(stream, shared[next], WORDS); /* with a kernel, */
        MUST(cuMemcpyDtoHAsync(&value, shared[next] + 4 * (WORDS - 1), 4, stream)); /* a copy */
        MUST(cuStreamSynchronize(stream));
        CHECK(value == 1000 * (unsigned)next + (unsigned)round + 1);
        MUST(cuMemFree(shared[next]));
        pthread_barrier_wait(&all);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i])
            MUST(cuMemFree(blocks[i]));
    return NULL;
}

static void threads(void)
{
    struct worker workers[DEVICES_MAX];

    pthread_barrier_init(&all, NULL, (unsigned)devices);
    for (int i = 0; i < devices; i++) {
        workers[i].device = i;
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (int i = 0; i < devices; i++)
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
}

int main(int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";

    MUST(cuInit(0));
    MUST(cuDeviceGetCount(&devices));
    if (devices < 2) {
        puts("one device");
        return 77;
    }
    if (devices > DEVICES_MAX)
        devices = DEVICES_MAX;
    for (int i = 0; i < devices; i++)
        MUST(cuDevicePrimaryCtxRetain(&contexts[i], i));
    enter(0);
    gpu_work_load();
    watchdog(scene, ENOUGH_S);
    if (!strcmp(scene, "before"))
        before();
    else if (!strcmp(scene, "after"))
        after();
    else if (!strcmp(scene, "disabled"))
        disabled();
    else if (!strcmp(scene, "refused"))
        refused();
    else if (!strcmp(scene, "moving"))
        moving();
    else if (!strcmp(scene, "threads"))
        threads();
    else
        return 2;
    puts("ok");
    return 0;
}
