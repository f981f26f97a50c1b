/* SPDX-License-Identifier: Apache-2.0 */
/* What a limit charges, on 8 GiB: no more than the driver takes, so that nothing is refused that
 * fits, and no less.  Each scene ends with "ok", or with a line that says what was wrong.
 *
 * exact_limit many_pools COUNT   so many pools have given back what they held
 * exact_limit small WAY          128 small blocks, and what they had is there again afterwards
 * exact_limit rows               arrays of one row take eight
 * exact_limit late               a limit that is set while stream-ordered memory is live
 * exact_limit elsewhere          another device's pool, used from a stream of this one
 * exact_limit share_elsewhere    a share of what is free on a device that has no context yet
 * exact_limit host_pool WAY      a pool of host memory, created or the default one
 * exact_limit managed_pool WHERE none, host or numa: a managed pool that no device is named for
 * exact_limit no_location        the driver's own error for a pool without a location
 * exact_limit side_by_side       threads whose pool may grow for each of them
 * exact_limit everything N       8 threads, every way at once, N operations each */
#include "../hostcuda/hostcuda.h"
#include "sample.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum {
    TYPE_MANAGED = 2, /* since 13.0, as are these: */
    LOCATION_NONE = 0,
    LOCATION_HOST = 2,
    LOCATION_HOST_NUMA = 3,
};

static CUstream stream;

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d: ", __LINE__);                                                         \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static bool takes_plain(size_t bytes)
{
    CUdeviceptr block;
    CUresult result = cuMemAlloc(&block, bytes);

    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return false;
    MUST(result);
    MUST(cuMemFree(block));
    return true;
}

static CUmemoryPool new_pool(int type, int location, int id)
{
    CUmemPoolProps props;
    CUmemoryPool pool;

    memset(&props, 0, sizeof(props));
    props.allocType = (CUmemAllocationType)type;
    props.location.type = (CUmemLocationType)location;
    props.location.id = id;
    MUST(cuMemPoolCreate(&pool, &props));
    return pool;
}

/* ---- pools ---- */

static void many_pools(const char *count)
{
    CUdeviceptr block;
    size_t free_bytes, total_bytes;

    for (int i = atoi(count); i > 0; i--) {
        CUmemoryPool pool = new_pool(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, 0);
        MUST(cuMemAllocFromPoolAsync(&block, 16 * MIB, pool, stream));
        MUST(cuMemFreeAsync(block, stream));
    }
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    EXPECT(free_bytes > 1000 * MIB, "%zu of %zu are free", free_bytes, total_bytes);
    EXPECT(takes_plain(900 * MIB), "900 MiB are refused");
}

static void late(const char *unused)
{
    int (*set_limit)(int, size_t) =
        (int (*)(int, size_t))(uintptr_t)dlsym(RTLD_DEFAULT, "rmmshim_set_limit");
    CUdeviceptr block;

    (void)unused;
    EXPECT(set_limit, "no rmmshim_set_limit");
    MUST(cuMemAllocAsync(&block, 3072 * MIB, stream));
    MUST(cuStreamSynchronize(stream));
    EXPECT(set_limit(0, 1024 * MIB) == 0, "the limit is not set");
    EXPECT(!takes_plain(512 * MIB), "512 MiB are granted beside 3 GiB, under 1 GiB");
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));
    EXPECT(takes_plain(512 * MIB), "512 MiB are refused when all is free");
}

static void elsewhere(const char *unused)
{
    CUmemoryPool pool = new_pool(CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE, 1);
    CUdeviceptr block;

    (void)unused;
    EXPECT(cuMemAllocFromPoolAsync(&block, 1024 * MIB, pool, stream) == CUDA_ERROR_OUT_OF_MEMORY,
           "1 GiB is granted under 256 MiB");
    MUST(cuMemAllocFromPoolAsync(&block, 200 * MIB, pool, stream));
}

static void share_elsewhere(const char *unused)
{
    const CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
    };
    CUmemGenericAllocationHandle handle;

    (void)unused;
    EXPECT(cuMemCreate(&handle, 4096 * MIB, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY,
           "4 GiB of 8 are granted under 10 %%");
    MUST(cuMemCreate(&handle, 700 * MIB, &properties, 0));
}

typedef CUresult get_function(CUmemoryPool *out, CUmemLocation *location, CUmemAllocationType type);

/* As a runtime finds it: these headers may not have it. */
static get_function *pool_getter(const char *name)
{
    void *get;

    MUST(cuGetProcAddress(name, &get, 13000, CU_GET_PROC_ADDRESS_DEFAULT, NULL));
    return (get_function *)(uintptr_t)get;
}

static CUmemoryPool default_pool(int type, int location, int id)
{
    CUmemLocation where = {.type = (CUmemLocationType)location, .id = id};
    CUmemoryPool pool;

    MUST(pool_getter("cuMemGetDefaultMemPool")(&pool, &where, (CUmemAllocationType)type));
    return pool;
}

static void no_location(const char *unused)
{
    static const char *const names[] = {"cuMemGetDefaultMemPool", "cuMemGetMemPool"};
    CUmemLocation where = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemoryPool pool;

    (void)unused;
    for (int i = 0; i < 2; i++) {
        get_function *get = pool_getter(names[i]);
        EXPECT(get(&pool, NULL, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_ERROR_INVALID_VALUE,
               "%s without a location", names[i]);
        EXPECT(get(NULL, &where, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_ERROR_INVALID_VALUE,
               "%s without a pool", names[i]);
    }
}

static void host_pool(const char *way)
{
    CUmemoryPool pool = strcmp(way, "default") == 0
                            ? default_pool(CU_MEM_ALLOCATION_TYPE_PINNED, LOCATION_HOST, 7)
                            : new_pool(CU_MEM_ALLOCATION_TYPE_PINNED, LOCATION_HOST, 7);
    CUdeviceptr block;

    EXPECT(cuMemAllocFromPoolAsync(&block, 512 * MIB, pool, stream) == CUDA_SUCCESS,
           "512 MiB of host memory are refused");
    EXPECT(takes_plain(250 * MIB), "host memory counts");
}

static void managed_pool(const char *where)
{
    int location = strcmp(where, "none") == 0   ? LOCATION_NONE
                   : strcmp(where, "host") == 0 ? LOCATION_HOST
                                                : LOCATION_HOST_NUMA;
    CUmemoryPool pools[2] = {new_pool(TYPE_MANAGED, location, 0),
                             default_pool(TYPE_MANAGED, location, 0)};
    CUdeviceptr block;

    for (int i = 0; i < 2; i++) {
        EXPECT(cuMemAllocFromPoolAsync(&block, 512 * MIB, pools[i], stream) ==
                   CUDA_ERROR_OUT_OF_MEMORY,
               "512 MiB of managed memory are granted under 256 MiB");
        MUST(cuMemAllocFromPoolAsync(&block, 100 * MIB, pools[i], stream));
    }
    EXPECT(!takes_plain(100 * MIB), "managed memory does not count");
}

/* ---- small blocks ---- */

enum way { PLAIN, MANAGED, ARRAY, ROW, LEVELS, WAYS };
static const char *const way_names[WAYS] = {"plain", "managed", "array", "row", "levels"};

static CUresult take(enum way way, size_t bytes, CUdeviceptr *block)
{
    CUDA_ARRAY_DESCRIPTOR shape = {.Width = 4096,
                                   .Height = bytes / 4096,
                                   .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                   .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR base = {.Width = 128,
                                    .Height = bytes / 128,
                                    .Format = CU_AD_FORMAT_UNSIGNED_INT8,
                                    .NumChannels = 1};

    switch (way) {
    case PLAIN:
        return cuMemAlloc(block, bytes);
    case MANAGED:
        return cuMemAllocManaged(block, bytes, CU_MEM_ATTACH_GLOBAL);
    case ROW:
        shape.Width = bytes;
        shape.Height = 0;
        return cuArrayCreate((CUarray *)block, &shape);
    case LEVELS:
        return cuMipmappedArrayCreate((CUmipmappedArray *)block, &base, 3);
    case ARRAY:
    case WAYS:
        break;
    }
    return cuArrayCreate((CUarray *)block, &shape);
}

static CUresult give(enum way way, CUdeviceptr block)
{
    if (way == LEVELS)
        return cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)block);
    if (way == ARRAY || way == ROW)
        return cuArrayDestroy((CUarray)(uintptr_t)block);
    return cuMemFree(block);
}

static enum way way_of(const char *name)
{
    enum way way = 0;

    while (way < WAYS && strcmp(way_names[way], name) != 0)
        way++;
    EXPECT(way < WAYS, "no way %s", name);
    return way;
}

static void small(const char *name)
{
    enum { COUNT = 128 };
    CUdeviceptr blocks[COUNT];
    enum way way = way_of(name);
    size_t bytes = way == PLAIN || way == MANAGED ? 4 * KIB : 16 * KIB;

    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < COUNT; i++)
            EXPECT(take(way, bytes, &blocks[i]) == CUDA_SUCCESS, "block %d is refused", i);
        EXPECT(takes_plain(10 * MIB), "10 MiB beside them are refused");
        EXPECT(!takes_plain(32 * MIB), "they do not count");
        for (int i = 0; i < COUNT; i++)
            MUST(give(way, blocks[i]));
        EXPECT(takes_plain(30 * MIB), "30 MiB are refused when they are gone");
    }
}

/* 64 KiB in one row take 512. */
static void rows(const char *unused)
{
    CUdeviceptr block;
    int count = 0;

    (void)unused;
    while (take(ROW, 64 * KIB, &block) == CUDA_SUCCESS)
        count++;
    EXPECT(count >= 60 && count <= 64, "%d rows of 512 KiB in 32 MiB", count);
}

/* ---- threads ---- */

static CUcontext context;
static atomic_uint refusals;
static pthread_barrier_t gate;

static void *hold_one(void *unused)
{
    CUstream own;
    CUdeviceptr block;

    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    pthread_barrier_wait(&gate);
    for (int i = 0; i < 200; i++) {
        CUresult result = cuMemAllocAsync(&block, MIB, own);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            refusals++;
            continue;
        }
        MUST(result);
        MUST(cuMemFreeAsync(block, own));
        MUST(cuStreamSynchronize(own));
    }
    return unused;
}

static void run_threads(unsigned count, void *(*work)(void *), void *argument)
{
    pthread_t threads[64];

    MUST(cuCtxGetCurrent(&context));
    pthread_barrier_init(&gate, NULL, count);
    for (unsigned i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, work, argument);
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static void side_by_side(const char *unused)
{
    (void)unused;
    run_threads(32, hold_one, NULL);
    EXPECT(refusals == 0, "%u of 6400 are refused", refusals);
}

/* Each thread has at most one block of each way, and all together never more than the limit less a
 * page for each thread, in the driver's pages. */
enum { THREADS = 8 };
static const size_t shares[] = {3 * MIB, 64 * KIB, 2 * MIB, 700 * KIB, 16 * KIB, 5 * MIB};

static size_t base_bytes; /* of the device, without ours */
static _Atomic size_t most_bytes;

/* As the device itself counts. */
static void note_taken(void)
{
    size_t taken_bytes = hostcuda_used_bytes(0) - base_bytes, seen = most_bytes;

    while (taken_bytes > seen && !atomic_compare_exchange_weak(&most_bytes, &seen, taken_bytes))
        ;
}

static _Atomic size_t live_bytes;
static size_t budget_bytes;

/* A page is not shared here, and levels take half as much again. */
static size_t pages_of(unsigned kind, size_t bytes)
{
    size_t levels_bytes = kind == LEVELS ? bytes / 2 : 0, rows = kind == ROW ? 8 : 1;

    return (bytes * rows + levels_bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

static bool fits(size_t bytes)
{
    if (atomic_fetch_add(&live_bytes, bytes) + bytes <= budget_bytes)
        return true;
    atomic_fetch_sub(&live_bytes, bytes);
    return false;
}

static void *use_everything(void *operations)
{
    enum { KINDS = WAYS + 1 }; /* and stream-ordered */
    CUdeviceptr blocks[KINDS] = {0};
    size_t pages[KINDS];
    static atomic_ullong seeds = 1;
    unsigned long long random = 88172645463325252ull * seeds++;
    CUstream own;

    MUST(cuCtxSetCurrent(context));
    MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    pthread_barrier_wait(&gate);
    for (long i = *(long *)operations; i > 0; i--) {
        if (i % 64 == 0)
            note_taken();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        unsigned kind = random % KINDS;
        size_t bytes = (shares[(random >> 20) % 6] + (kind == ARRAY ? 4095 : 0)) / 4096 * 4096;
        if (kind == ROW)
            bytes = 64 * KIB;
        if (blocks[kind]) {
            MUST(kind == WAYS ? cuMemFreeAsync(blocks[kind], own)
                              : give((enum way)kind, blocks[kind]));
            if (kind == WAYS)
                MUST(cuStreamSynchronize(own));
            blocks[kind] = 0;
            live_bytes -= pages[kind];
            continue;
        }
        pages[kind] = pages_of(kind, bytes);
        if (!fits(pages[kind]))
            continue;
        CUresult result = kind == WAYS ? cuMemAllocAsync(&blocks[kind], bytes, own)
                                       : take((enum way)kind, bytes, &blocks[kind]);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            refusals++;
            blocks[kind] = 0;
            live_bytes -= pages[kind];
            continue;
        }
        MUST(result);
    }
    for (unsigned kind = 0; kind < KINDS; kind++)
        if (blocks[kind])
            MUST(kind == WAYS ? cuMemFreeAsync(blocks[kind], own)
                              : give((enum way)kind, blocks[kind]));
    MUST(cuStreamSynchronize(own));
    return NULL;
}

static void everything(const char *operations)
{
    long count = atol(operations);
    size_t free_bytes, total_bytes;

    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    budget_bytes = total_bytes - THREADS * 2 * MIB;
    base_bytes = hostcuda_used_bytes(0);
    run_threads(THREADS, use_everything, &count);
    EXPECT(refusals == 0, "%u are refused", refusals);
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    EXPECT(most_bytes <= total_bytes, "%zu of %zu were taken", most_bytes, total_bytes);
    EXPECT(most_bytes > total_bytes / 3, "only %zu of %zu were taken", most_bytes, total_bytes);
    EXPECT(takes_plain(total_bytes - 2 * MIB), "%zu of %zu are free", free_bytes, total_bytes);
}

static const struct scene {
    const char *name;
    void (*play)(const char *argument);
} scenes[] = {
    {"many_pools", many_pools},
    {"small", small},
    {"rows", rows},
    {"late", late},
    {"elsewhere", elsewhere},
    {"share_elsewhere", share_elsewhere},
    {"host_pool", host_pool},
    {"managed_pool", managed_pool},
    {"no_location", no_location},
    {"side_by_side", side_by_side},
    {"everything", everything},
};

int main(int argc, char **argv)
{
    CUcontext primary;

    if (argc < 2)
        return 2;
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&primary, 0));
    MUST(cuCtxSetCurrent(primary));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        if (strcmp(scenes[i].name, argv[1]) != 0)
            continue;
        scenes[i].play(argc > 2 ? argv[2] : "");
        printf("ok\n");
        return 0;
    }
    return 2;
}
