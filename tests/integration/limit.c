/* SPDX-License-Identifier: Apache-2.0 */
/* A program under RMM_LIMIT, on the driver API: every way to the driver's memory, and what the
 * device itself says is in use (hostcuda.h), which no hook of the library's comes between.
 *
 *   limit SCENE LIMIT_BYTES [keeps]      keeps: a pool serves, which keeps what was freed
 *
 * Prints what is wrong; "ok" and status 0 when nothing is. */
#include "../samples/sample.h"
#include "hostcuda.h"

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, BLOCKS_MAX = 4096, THREADS = 8 };

extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);

static size_t limit_bytes, base_bytes;
static bool keeps;
static unsigned wrong;
static CUdevice device;
static CUmemoryPool pool;

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("line %d: %s\n", __LINE__, #condition);                                         \
            wrong++;                                                                               \
        }                                                                                          \
    } while (0)

/* ---- ways to allocate ---- */

enum path { ALLOC, PITCH, MANAGED, ASYNC, POOL, CREATE, MAPPED, ARRAY, ARRAY_3D, MIPMAPPED, PATHS };

static const char *const path_names[] = {"alloc",  "pitch",  "managed", "async",    "pool",
                                         "create", "mapped", "array",   "array_3d", "mipmapped"};

struct block {
    enum path path;
    size_t size_bytes; /* of the mapping */
    unsigned long long value;
};

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static CUmemAllocationProp device_prop(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};

    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    return prop;
}

static CUresult create(size_t bytes, CUmemGenericAllocationHandle *handle)
{
    CUmemAllocationProp prop = device_prop();

    return cuMemCreate(handle, round_up(bytes, 2 * MIB), &prop, 0);
}

static CUdeviceptr map(CUmemGenericAllocationHandle handle, size_t bytes)
{
    CUdeviceptr address;

    MUST(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    MUST(cuMemMap(address, bytes, 0, handle, 0));
    return address;
}

static void unmap(CUdeviceptr address, size_t bytes)
{
    MUST(cuMemUnmap(address, bytes));
    MUST(cuMemAddressFree(address, bytes));
}

/* As JAX, PyTorch and NCCL do: the handle is released as soon as the memory is mapped. */
static CUresult create_mapped(size_t bytes, unsigned long long *value)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = create(bytes, &handle);

    if (result != CUDA_SUCCESS)
        return result;
    *value = map(handle, round_up(bytes, 2 * MIB));
    MUST(cuMemRelease(handle));
    return CUDA_SUCCESS;
}

static CUresult create_array(enum path path, size_t bytes, void **array)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {.Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4};
    CUDA_ARRAY_DESCRIPTOR flat = {.Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};

    if (path == ARRAY) {
        flat.Width = 1024;
        flat.Height = (bytes + 4095) / 4096;
        return cuArrayCreate((CUarray *)array, &flat);
    }
    full.Width = 64;
    full.Height = 64;
    full.Depth = (bytes + 65535) / 65536;
    return path == ARRAY_3D ? cuArray3DCreate((CUarray *)array, &full)
                            : cuMipmappedArrayCreate((CUmipmappedArray *)array, &full, 3);
}

static CUresult take(enum path path, size_t bytes, struct block *block)
{
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr address = 0;
    void *array = NULL;
    size_t pitch;
    CUresult result;

    /* The device's stream-ordered pools count by the block, but cut small pieces from blocks that
     * cuMemAlloc uses too. */
    if (path == ASYNC || path == POOL)
        bytes = round_up(bytes, 2 * MIB);
    *block = (struct block){path, round_up(bytes, 2 * MIB), 0};
    switch (path) {
    case PITCH:
        result = cuMemAllocPitch(&address, &pitch, 1000, (bytes + 1023) / 1024, 4);
        break;
    case MANAGED:
        result = cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL);
        break;
    case ASYNC:
        result = cuMemAllocAsync(&address, bytes, NULL);
        break;
    case POOL:
        result = cuMemAllocFromPoolAsync(&address, bytes, pool, NULL);
        break;
    case CREATE:
        result = create(bytes, &handle);
        block->value = handle;
        return result;
    case MAPPED:
        return create_mapped(bytes, &block->value);
    case ARRAY:
    case ARRAY_3D:
    case MIPMAPPED:
        result = create_array(path, bytes, &array);
        block->value = (unsigned long long)(uintptr_t)array;
        return result;
    case ALLOC:
    case PATHS:
    default:
        result = cuMemAlloc(&address, bytes);
        break;
    }
    block->value = address;
    return result;
}

static void give(const struct block *block)
{
    switch (block->path) {
    case ASYNC:
    case POOL:
        MUST(cuMemFreeAsync(block->value, NULL));
        break;
    case CREATE:
        MUST(cuMemRelease(block->value));
        break;
    case MAPPED:
        unmap(block->value, block->size_bytes);
        break;
    case ARRAY:
    case ARRAY_3D:
        MUST(cuArrayDestroy((CUarray)(uintptr_t)block->value));
        break;
    case MIPMAPPED:
        MUST(cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)block->value));
        break;
    case ALLOC:
    case PITCH:
    case MANAGED:
    case PATHS:
    default:
        MUST(cuMemFree(block->value));
        break;
    }
}

static void give_all(const struct block *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        give(&blocks[i]);
    MUST(cuCtxSynchronize());
}

/* ---- what is true all the time ---- */

static void check_held(void)
{
    size_t free_bytes, total_bytes, device_total;

    EXPECT(hostcuda_used_bytes(device) <= base_bytes + limit_bytes);
    EXPECT(hostcuda_peak_bytes(device) <= base_bytes + limit_bytes);
    if (hostcuda_peak_bytes(device) > base_bytes + limit_bytes)
        printf("  by %zu bytes\n", hostcuda_peak_bytes(device) - base_bytes - limit_bytes);
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    MUST(cuDeviceTotalMem(&device_total, device));
    EXPECT(total_bytes == limit_bytes);
    EXPECT(device_total == limit_bytes);
    EXPECT(free_bytes <= total_bytes);
}

static size_t free_now(void)
{
    size_t free_bytes, total_bytes;

    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    return free_bytes;
}

/* Nothing of the program's is live. */
static void check_all_back(void)
{
    /* A pool's chunk smaller than the driver's block counts as the block while it is held. */
    size_t slack = keeps ? 4 * MIB : 0;

    EXPECT(keeps || hostcuda_used_bytes(device) == base_bytes);
    EXPECT(free_now() >= limit_bytes - slack);
    EXPECT(free_now() <= limit_bytes);
}

static size_t fill(enum path path, size_t bytes, struct block *blocks)
{
    size_t count = 0;
    CUresult result = CUDA_SUCCESS;

    while (count < BLOCKS_MAX && (result = take(path, bytes, &blocks[count])) == CUDA_SUCCESS) {
        count++;
        check_held();
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY) {
        printf("%s: %d after %zu blocks\n", path_names[path], (int)result, count);
        wrong++;
    }
    return count;
}

/* ---- scenes ---- */

/* Each way is refused at the limit, and then every other way is; all comes back. */
static void every_path(void)
{
    static struct block blocks[BLOCKS_MAX];
    const size_t sizes[] = {3 * MIB, 4 * MIB, 700000};

    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (int path = 0; path < PATHS; path++) {
            size_t count = fill((enum path)path, sizes[s], blocks), again, used;
            unsigned before = wrong;

            EXPECT(count >= limit_bytes / (6 * MIB) - 1);
            used = hostcuda_used_bytes(device);
            for (int other = 0; other < PATHS; other++) {
                struct block block;
                EXPECT(take((enum path)other, sizes[0] * 2, &block) == CUDA_ERROR_OUT_OF_MEMORY);
            }
            EXPECT(hostcuda_used_bytes(device) <= used);
            give_all(blocks, count);
            check_all_back();
            again = fill((enum path)path, sizes[s], blocks);
            EXPECT(again == count);
            give_all(blocks, again);
            if (wrong != before)
                printf("  that was %s, %zu bytes: %zu blocks, then %zu\n", path_names[path],
                       sizes[s], count, again);
        }
    }
}

static unsigned next_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* Sizes from bytes to megabytes, by all ways at once. */
static void mixture(void)
{
    static struct block blocks[BLOCKS_MAX];
    size_t count = 0, refused = 0;
    unsigned state = 1;

    for (int i = 0; i < 6000; i++) {
        unsigned random = next_random(&state);
        size_t bytes = random % 4 ? 1 + random % 60000 : 1 + random % (5 * MIB);
        enum path path = (enum path)(next_random(&state) % PATHS);
        CUresult result;

        result = count < BLOCKS_MAX ? take(path, bytes, &blocks[count]) : CUDA_ERROR_UNKNOWN;
        if (result == CUDA_SUCCESS)
            count++;
        else
            refused += result == CUDA_ERROR_OUT_OF_MEMORY;
        if (result != CUDA_SUCCESS && count) {
            size_t victim = next_random(&state) % count;
            EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
            give(&blocks[victim]);
            blocks[victim] = blocks[--count];
        }
        if (i % 16 == 0)
            check_held();
    }
    EXPECT(refused > 100);
    give_all(blocks, count);
    check_all_back();
}

/* What cuMemGetInfo says goes down and up by what is taken. */
static void information(void)
{
    for (int path = 0; path < PATHS; path++) {
        struct block block;
        size_t before = free_now();

        MUST(take((enum path)path, 8 * MIB, &block));
        EXPECT(before - free_now() >= 8 * MIB);
        EXPECT(before - free_now() <= 16 * MIB);
        check_held();
        give(&block);
        MUST(cuCtxSynchronize());
        EXPECT(free_now() == before);
    }
}

static bool has_room(void)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = create(limit_bytes / 2, &handle);

    if (result == CUDA_SUCCESS)
        MUST(cuMemRelease(handle));
    else
        EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
    return result == CUDA_SUCCESS;
}

/* A handle that is imported is no more memory, and releasing it gives none back that lives. */
static void imported(void)
{
    CUmemAllocationProp prop = device_prop();
    CUmemGenericAllocationHandle handle, other;
    size_t bytes = round_up(limit_bytes / 2 + 2 * MIB, 2 * MIB);
    CUdeviceptr address;
    int fd;

    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    MUST(cuMemCreate(&handle, bytes, &prop, 0));
    MUST(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    MUST(cuMemImportFromShareableHandle(&other, (void *)(uintptr_t)fd,
                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    address = map(other, bytes);
    MUST(cuMemRelease(other));
    EXPECT(!has_room());
    unmap(address, bytes);
    EXPECT(!has_room());
    MUST(cuMemRelease(handle));
    EXPECT(has_room());
}

/* Memory lives until its last handle and its last mapping are gone. */
static void references(void)
{
    size_t bytes = limit_bytes / 2 + 2 * MIB, half = round_up(bytes / 2, 2 * MIB);
    CUmemGenericAllocationHandle handle, other;
    CUdeviceptr first, second;

    MUST(create(bytes, &handle));
    EXPECT(!has_room());
    EXPECT(cuMemRelease(handle ^ 0x5a5a5a5a00) != CUDA_SUCCESS);
    first = map(handle, bytes);
    MUST(cuMemRelease(handle));
    EXPECT(!has_room()); /* released while mapped */
    unmap(first, bytes);
    EXPECT(has_room());

    MUST(create(bytes, &handle));
    first = map(handle, bytes);
    MUST(cuMemRelease(handle));
    MUST(cuMemRetainAllocationHandle(&other, (void *)(uintptr_t)(first + 4096)));
    unmap(first, bytes);
    EXPECT(!has_room()); /* retained */
    MUST(cuMemRelease(other));
    EXPECT(has_room());

    MUST(create(bytes, &handle));
    MUST(cuMemAddressReserve(&first, bytes, 0, 0, 0));
    MUST(cuMemMap(first, bytes, 0, handle, 0));
    MUST(cuMemRetainAllocationHandle(&other, (void *)(uintptr_t)first));
    second = map(handle, bytes);
    MUST(cuMemRelease(handle));
    MUST(cuMemRelease(other));
    EXPECT(cuMemUnmap(first, half) != CUDA_SUCCESS); /* not a part of a mapping */
    EXPECT(!has_room());
    unmap(first, bytes);
    EXPECT(!has_room()); /* mapped twice */
    unmap(second, bytes);
    EXPECT(has_room());

    MUST(create(half, &handle));
    MUST(create(half, &other));
    MUST(cuMemAddressReserve(&first, 2 * half, 0, 0, 0));
    MUST(cuMemMap(first, half, 0, handle, 0));
    MUST(cuMemMap(first + half, half, 0, other, 0));
    MUST(cuMemRelease(handle));
    MUST(cuMemRelease(other));
    EXPECT(!has_room());
    unmap(first, 2 * half); /* both at once */
    EXPECT(has_room());
    imported();
    check_all_back();
}

/* What one way keeps serves another: pairs of ways, each larger than half of what there is. */
static void trim(void)
{
    cuuint64_t all = UINT64_MAX;
    CUmemoryPool usual;
    size_t bytes = limit_bytes / 8 * 5;

    MUST(cuDeviceGetDefaultMemPool(&usual, device));
    MUST(cuMemPoolSetAttribute(usual, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    for (int path = 0; path < PATHS; path++) {
        for (int other = 0; other < PATHS; other++) {
            struct block block;
            CUresult result;

            MUST(take((enum path)path, bytes, &block));
            give(&block);
            MUST(cuCtxSynchronize());
            result = take((enum path)other, bytes, &block);
            if (result != CUDA_SUCCESS) {
                printf("%s after %s: %d\n", path_names[other], path_names[path], (int)result);
                wrong++;
                continue;
            }
            give(&block);
            MUST(cuCtxSynchronize());
        }
    }
}

/* Another context's pool gives back what it keeps; what dies with a context is counted no more. */
static void contexts(void)
{
    struct block blocks[4], mine;
    CUcontext first, second;
    size_t bytes = limit_bytes / 8 * 5, free_before;

    MUST(cuCtxGetCurrent(&first));
    MUST(cuCtxCreate_v2(&second, 0, device));
    MUST(take(ALLOC, bytes, &mine));
    give(&mine);
    MUST(cuCtxSetCurrent(first));
    MUST(take(ALLOC, bytes, &mine)); /* the second context keeps nothing now */
    give(&mine);
    MUST(cuCtxSetCurrent(second));
    MUST(take(ALLOC, bytes, &mine));
    give(&mine);

    free_before = free_now();
    MUST(take(ALLOC, 4 * MIB, &blocks[0]));
    MUST(take(ARRAY, 4 * MIB, &blocks[1]));
    MUST(take(MANAGED, 4 * MIB, &blocks[2]));
    MUST(take(CREATE, 4 * MIB, &blocks[3]));
    MUST(take(ALLOC, 700, &mine));
    MUST(cuCtxDestroy(second));
    MUST(cuCtxSetCurrent(first));
    EXPECT(free_now() == free_before - 4 * MIB); /* what cuMemCreate made survives */
    give(&blocks[3]);
    EXPECT(free_now() == free_before);
    MUST(take(ALLOC, bytes, &mine));
    give(&mine);
}

struct worker {
    pthread_t thread;
    CUcontext context;
    unsigned seed;
    unsigned taken, refused, other;
};

/* Nobody stops before somebody was refused: on a busy machine the threads meet late. */
enum { ROUNDS = 1500, ROUNDS_MAX = 1000 * 1000 };

static _Atomic bool somebody_was_refused;

static void *hammer(void *data)
{
    struct worker *worker = data;
    struct block blocks[8];
    size_t count = 0;

    MUST(cuCtxSetCurrent(worker->context));
    for (int i = 0; i < ROUNDS || (!somebody_was_refused && i < ROUNDS_MAX); i++) {
        size_t bytes = (1 + next_random(&worker->seed) % 4) * 2 * MIB;
        enum path path = (enum path)(next_random(&worker->seed) % PATHS);
        CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

        if (count < 8)
            result = take(path, bytes, &blocks[count]);
        worker->taken += result == CUDA_SUCCESS;
        if (count < 8 && result == CUDA_ERROR_OUT_OF_MEMORY) {
            worker->refused++;
            somebody_was_refused = true;
        }
        worker->other += result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            count++;
        else if (count)
            give(&blocks[--count]);
    }
    for (size_t i = 0; i < count; i++)
        give(&blocks[i]);
    return NULL;
}

static void threads(void)
{
    struct worker workers[THREADS];
    unsigned taken = 0, refused = 0;

    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.seed = i + 1};
        MUST(cuCtxGetCurrent(&workers[i].context));
        if (pthread_create(&workers[i].thread, NULL, hammer, &workers[i]) != 0)
            abort();
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        taken += workers[i].taken;
        EXPECT(workers[i].other == 0);
        refused += workers[i].refused;
    }
    EXPECT(taken > 0);
    EXPECT(refused > 0);
    MUST(cuCtxSynchronize());
    check_held();
    check_all_back();
}

/* A pool that is destroyed while blocks of it live is counted until the last is freed. */
static void destroyed_pool(void)
{
    size_t bytes = limit_bytes / 2 + 2 * MIB;
    struct block block;

    MUST(take(POOL, bytes, &block));
    MUST(cuMemPoolDestroy(pool));
    EXPECT(!has_room());
    give(&block);
    MUST(cuCtxSynchronize());
    EXPECT(has_room());
}

/* Prints each device's size as the program is told it. */
static void sizes(void)
{
    int count;

    MUST(cuDeviceGetCount(&count));
    for (int i = 0; i < count; i++) {
        size_t bytes, free_bytes, total;
        CUcontext context;

        MUST(cuDeviceTotalMem(&bytes, i));
        MUST(cuDevicePrimaryCtxRetain(&context, i));
        MUST(cuCtxSetCurrent(context));
        MUST(cuMemGetInfo(&free_bytes, &total));
        printf("device %d: %zu MiB, %zu MiB, %s\n", i, bytes / MIB, total / MIB,
               free_bytes <= total ? "no more free" : "more is free");
    }
}

static void start(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
    CUcontext context;
    CUdeviceptr block;

    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    props.location.id = device;
    MUST(cuMemPoolCreate(&pool, &props));
    /* Contexts' own memory is outside the limit, and so is the little that the library needs. */
    base_bytes = hostcuda_used_bytes(device) + 2 * MIB;
    MUST(cuMemAlloc(&block, 512));
    MUST(cuMemFree(block));
    EXPECT(keeps || base_bytes == hostcuda_used_bytes(device));
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*play)(void);
    } scenes[] = {
        {"every_path", every_path},
        {"mixture", mixture},
        {"information", information},
        {"references", references},
        {"trim", trim},
        {"contexts", contexts},
        {"threads", threads},
        {"destroyed_pool", destroyed_pool},
    };

    if (argc < 2)
        return 2;
    keeps = argc > 3;
    limit_bytes = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    MUST(cuInit(0));
    if (strcmp(argv[1], "sizes") == 0) {
        sizes();
        return 0;
    }
    start();
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (strcmp(argv[1], scenes[i].name) == 0)
            scenes[i].play();
    if (!wrong)
        puts("ok");
    return wrong != 0;
}
