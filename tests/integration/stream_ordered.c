/* SPDX-License-Identifier: Apache-2.0 */
/* Stream-ordered memory on the driver API.
 *
 *   stream_ordered SCENE      answers    prints what the driver answers: the same with the library
 *                             others     print "ok", or what is wrong */
#include "device_work.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

enum { BYTES = 1 << 20, WORDS = BYTES / 4, MANY = 40 };

static CUdevice device;
static CUstream stream, other;

#define SAY(call) printf("%s = %d\n", #call, (int)(call))

static CUmemoryPool default_pool(void)
{
    CUmemoryPool pool;

    MUST(cuDeviceGetDefaultMemPool(&pool, device));
    return pool;
}

/* The pool that the block says it is of; NULL: of none. */
static CUmemoryPool pool_of(CUdeviceptr block)
{
    CUmemoryPool pool = NULL;

    MUST(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    return pool;
}

static CUdeviceptr allocate_on(CUstream on, size_t bytes)
{
    CUdeviceptr block;

    MUST(cuMemAllocAsync(&block, bytes, on));
    return block;
}

/* ---- what the driver answers ---- */

static void use(CUstream on, CUdeviceptr block, unsigned value)
{
    static unsigned host[WORDS];

    fill(on, block, WORDS, value);
    add_one(on, block, WORDS);
    MUST(cuMemcpyDtoHAsync(host, block, BYTES, on));
    MUST(cuStreamSynchronize(on));
    for (int i = 0; i < WORDS; i++)
        CHECK(host[i] == value + 1);
}

static void answers(void)
{
    CUstream streams[] = {stream, other, NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    CUdeviceptr block, base, managed;
    size_t bytes;

    for (unsigned i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
        CUstream on = streams[i];
        CUdeviceptr blocks[4];
        for (int j = 0; j < 4; j++) {
            blocks[j] = allocate_on(on, BYTES);
            use(on, blocks[j], 10 * i + (unsigned)j);
        }
        SAY(cuMemFreeAsync(blocks[0], on));
        SAY(cuMemFreeAsync(blocks[0], on));
        SAY(cuMemFree(blocks[1]));
        SAY(cuMemFree(blocks[1]));
        SAY(cuMemFreeAsync(blocks[2] + 512, on));
        SAY(cuMemGetAddressRange(&base, &bytes, blocks[2] + 513));
        printf("base %s, %zu bytes\n", base == blocks[2] ? "right" : "WRONG", bytes);
        SAY(cuMemFreeAsync(blocks[2], NULL));
        SAY(cuMemFreeAsync(blocks[3], other));
        MUST(cuMemAlloc(&block, BYTES));
        use(on, block, i);
        SAY(cuMemFreeAsync(block, on));
        SAY(cuMemFree(block));
    }
    SAY(cuMemAllocAsync(&block, 0, stream));
    printf("nothing %s\n", block ? "WRONG" : "right");
    SAY(cuMemAllocAsync(NULL, BYTES, stream));
    SAY(cuMemAllocAsync(&block, (size_t)1 << 60, stream));
    SAY(cuMemFreeAsync(0, stream));
    MUST(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    SAY(cuMemFreeAsync(managed, stream));
    SAY(cuMemFree(managed));
}

/* ---- the order of a stream ---- */

/* A block freed while its stream is stopped serves that stream, and no other. */
static void order(void)
{
    unsigned *flag = flag_new(), host[WORDS];
    CUdeviceptr block, again, elsewhere, plain;

    block = allocate_on(stream, BYTES);
    fill(stream, block, WORDS, 1);
    stop_at(stream, flag);
    fill(stream, block, WORDS, 2);
    MUST(cuMemFreeAsync(block, stream));
    elsewhere = allocate_on(other, BYTES);
    CHECK(elsewhere != block);
    MUST(cuMemAlloc(&plain, BYTES));
    CHECK(plain != block);
    again = allocate_on(stream, BYTES);
    CHECK(again == block);
    fill(stream, again, WORDS, 3);
    fill(other, elsewhere, WORDS, 4);
    MUST(cuMemcpyDtoHAsync(host, elsewhere, BYTES, other));
    MUST(cuStreamSynchronize(other));
    CHECK(host[0] == 4 && host[WORDS - 1] == 4);
    flag_raise(flag);
    MUST(cuMemcpyDtoHAsync(host, again, BYTES, stream));
    MUST(cuStreamSynchronize(stream));
    CHECK(host[0] == 3 && host[WORDS - 1] == 3);
    MUST(cuMemFreeAsync(again, stream));
    MUST(cuMemFreeAsync(elsewhere, other));
    MUST(cuMemFree(plain));
    MUST(cuMemFreeHost(flag));
}

/* What programs call that are compiled for per-thread default streams. */
extern CUresult cuMemAllocAsync_ptsz(CUdeviceptr *block, size_t bytes, CUstream stream);
extern CUresult cuMemFreeAsync_ptsz(CUdeviceptr block, CUstream stream);

struct in_thread {
    CUcontext context;
    CUdeviceptr block;
};

static void *allocate_in_thread(void *data)
{
    struct in_thread *in_thread = data;

    MUST(cuCtxSetCurrent(in_thread->context));
    MUST(cuMemAllocAsync_ptsz(&in_thread->block, BYTES, NULL));
    MUST(cuMemFreeAsync_ptsz(in_thread->block, NULL));
    return NULL;
}

/* The NULL stream of such a program is this thread's, neither another's nor the legacy one. */
static void per_thread(CUcontext context)
{
    unsigned *flag = flag_new();
    struct in_thread in_thread = {.context = context};
    CUdeviceptr block, again, legacy;
    pthread_t thread;

    MUST(cuMemAllocAsync_ptsz(&block, BYTES, NULL));
    stop_at(CU_STREAM_PER_THREAD, flag);
    MUST(cuMemFreeAsync_ptsz(block, NULL));
    legacy = allocate_on(NULL, BYTES);
    CHECK(legacy != block);
    CHECK(pthread_create(&thread, NULL, allocate_in_thread, &in_thread) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(in_thread.block != block);
    MUST(cuMemAllocAsync_ptsz(&again, BYTES, NULL));
    CHECK(again == block);
    flag_raise(flag);
    MUST(cuMemFreeAsync_ptsz(again, NULL));
    MUST(cuMemFreeAsync(legacy, NULL));
    MUST(cuCtxSynchronize());
    MUST(cuMemFreeHost(flag));
}

/* No call waits for work: it ends only when this thread goes on. */
static void no_wait(bool also_plain)
{
    unsigned *flag = flag_new();
    CUdeviceptr blocks[MANY], plain[MANY];

    for (int i = 0; i < MANY; i++)
        if (also_plain)
            MUST(cuMemAlloc(&plain[i], BYTES));
    stop_at(stream, flag);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++)
            blocks[i] = allocate_on(i % 2 ? stream : other, BYTES);
        for (int i = 0; i < MANY; i++)
            MUST(cuMemFreeAsync(blocks[i], i % 2 ? stream : other));
    }
    for (int i = 0; i < MANY; i++)
        if (also_plain)
            MUST(cuMemFreeAsync(plain[i], stream));
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    flag_raise(flag);
    MUST(cuCtxSynchronize());
    MUST(cuMemFreeHost(flag));
}

/* ---- whose memory it is ---- */

static CUmemoryPool make_pool(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemoryPool pool;

    MUST(cuMemPoolCreate(&pool, &props));
    return pool;
}

/* A pool of the program's own serves, by its name or as the device's current one. */
static void pools(void)
{
    CUmemoryPool own = make_pool();
    CUdeviceptr block = allocate_on(stream, BYTES), named;

    CHECK(pool_of(block) == NULL); /* the stack's */
    MUST(cuMemAllocFromPoolAsync(&named, BYTES, own, stream));
    CHECK(pool_of(named) == own);
    MUST(cuMemFreeAsync(named, stream));
    MUST(cuMemAllocFromPoolAsync(&named, BYTES, default_pool(), stream));
    CHECK(pool_of(named) == default_pool());
    MUST(cuMemFreeAsync(named, stream));
    MUST(cuDeviceSetMemPool(device, own));
    named = allocate_on(stream, BYTES);
    CHECK(pool_of(named) == own);
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuMemFreeAsync(named, stream));
    MUST(cuDeviceSetMemPool(device, default_pool()));
    block = allocate_on(stream, BYTES);
    CHECK(pool_of(block) == NULL);
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemPoolDestroy(own));
}

static void not_served(void)
{
    CUdeviceptr block = allocate_on(stream, BYTES);

    CHECK(pool_of(block) == default_pool());
    MUST(cuMemFreeAsync(block, stream));
}

/* Other devices reach the default pool's memory when its access says so, also what was allocated
 * before; cuCtxEnablePeerAccess is still the program's own to call. */
static void shared_pool(void)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr before, block;
    CUcontext here, there;

    MUST(cuMemPoolSetAccess(default_pool(), &access, 1)); /* its own device's: nothing new */
    before = allocate_on(stream, BYTES);
    CHECK(pool_of(before) != default_pool());
    MUST(cuCtxGetCurrent(&here));
    MUST(cuDevicePrimaryCtxRetain(&there, 1));
    access.location.id = 1;
    MUST(cuMemPoolSetAccess(default_pool(), &access, 1));
    block = allocate_on(stream, BYTES);
    CHECK(pool_of(block) == default_pool());
    MUST(cuStreamSynchronize(stream));
    MUST(cuCtxSetCurrent(there));
    fill(NULL, before, WORDS, 4);
    fill(NULL, block, WORDS, 5);
    MUST(cuCtxSynchronize());
    CHECK(cuCtxDisablePeerAccess(here) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    MUST(cuCtxEnablePeerAccess(here, 0));
    CHECK(cuCtxEnablePeerAccess(here, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    MUST(cuCtxDisablePeerAccess(here));
    CHECK(cuCtxDisablePeerAccess(here) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    MUST(cuCtxSetCurrent(here));
    MUST(cuMemFreeAsync(before, stream));
    MUST(cuMemFreeAsync(block, stream));
}

/* Of a device that nobody uses yet nothing is lent, and that is said. */
static void shared_too_late(void)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr block = allocate_on(stream, BYTES);

    MUST(cuMemPoolSetAccess(default_pool(), &access, 1));
    MUST(cuMemFreeAsync(block, stream));
}

/* Memory of eight contexts of a device is lent; with a ninth one it is said that some is not. */
static void shared_by(int contexts)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUcontext there, created;

    (void)allocate_on(stream, BYTES);
    for (int i = 1; i < contexts; i++) {
        MUST(cuCtxCreate_v2(&created, 0, device));
        (void)allocate_on(NULL, BYTES);
    }
    MUST(cuDevicePrimaryCtxRetain(&there, 1));
    MUST(cuMemPoolSetAccess(default_pool(), &access, 1));
}

/* ---- streams of other contexts ---- */

/* The device of the stream serves, whatever is current; a free on another device's stream comes
 * after that stream's work. */
static void elsewhere(void)
{
    CUcontext here, there;
    CUstream far;
    CUdeviceptr block, again, far_block;
    int ordinal = -1;

    MUST(cuCtxGetCurrent(&here));
    MUST(cuDevicePrimaryCtxRetain(&there, 1));
    MUST(cuCtxSetCurrent(there));
    MUST(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
    MUST(cuCtxEnablePeerAccess(here, 0));
    MUST(cuCtxSetCurrent(here));
    far_block = allocate_on(far, BYTES);
    MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, far_block));
    CHECK(ordinal == 1);
    MUST(cuCtxSetCurrent(there));
    fill(far, far_block, WORDS, 6);
    MUST(cuCtxSetCurrent(here));
    MUST(cuMemFreeAsync(far_block, far));

    for (int round = 0; round < 20; round++) {
        block = allocate_on(stream, BYTES);
        if (round % 2 || pool_of(block)) { /* the driver's pool is not reached so */
            MUST(cuMemFreeAsync(block, stream));
            MUST(cuMemAlloc(&block, BYTES));
        }
        hostcuda_note_allocate((void *)block, BYTES);
        MUST(cuStreamSynchronize(stream));
        MUST(cuCtxSetCurrent(there));
        fill(far, block, WORDS, 7);
        MUST(cuCtxSetCurrent(here));
        hostcuda_note_free_on((void *)block, far);
        MUST(cuMemFreeAsync(block, far));
        MUST(cuMemAlloc(&again, BYTES));
        hostcuda_note_allocate((void *)again, BYTES);
        fill(stream, again, WORDS, 8);
        MUST(cuStreamSynchronize(stream));
        hostcuda_note_free((void *)again);
        MUST(cuMemFree(again));
    }
    CHECK(hostcuda_race_count() == 0);
}

/* ---- refusals ---- */

/* A pool that keeps memory is refused an allocation, and keeps what the driver could gather for it.
 * That this can be given back is no reason to ask again and again. */
static void refused(void)
{
    cuuint64_t threshold = UINT64_MAX;
    CUdeviceptr live, block;
    size_t free_bytes, bytes;
    unsigned long long calls;

    MUST(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    MUST(cuMemGetInfo(&free_bytes, &bytes));
    MUST(cuMemAlloc(&live, free_bytes / 2));
    for (int round = 0; round < 3; round++) {
        calls = hostcuda_call_count("cuMemAllocAsync");
        CHECK(cuMemAllocAsync(&block, free_bytes, stream) == CUDA_ERROR_OUT_OF_MEMORY);
        CHECK(hostcuda_call_count("cuMemAllocAsync") - calls <= 2);
        CHECK(cuMemAlloc(&block, free_bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    }
    block = allocate_on(stream, free_bytes / 4);
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemFree(live));
    MUST(cuMemAlloc(&live, free_bytes / 4 * 3)); /* in spite of what the pool keeps */
    MUST(cuMemFree(live));
}

/* All that this process could give back is too little, so nobody waits for the GPU. */
static void hopeless(void)
{
    unsigned *flag = flag_new();
    size_t free_bytes, bytes;
    CUdeviceptr freed, block;

    MUST(cuMemGetInfo(&free_bytes, &bytes));
    freed = allocate_on(stream, free_bytes / 4);
    MUST(cuStreamSynchronize(stream));
    stop_at(stream, flag);
    MUST(cuMemFreeAsync(freed, stream));
    CHECK(cuMemAlloc(&block, free_bytes + (64 << 20)) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAllocAsync(&block, free_bytes + (64 << 20), other) == CUDA_ERROR_OUT_OF_MEMORY);
    flag_raise(flag);
    MUST(cuStreamSynchronize(stream));
}

int main(int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";
    CUcontext context;

    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    gpu_work_load();
    watchdog(scene, ENOUGH_S);
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    if (!strcmp(scene, "answers"))
        answers();
    else if (!strcmp(scene, "order"))
        order();
    else if (!strcmp(scene, "per_thread"))
        per_thread(context);
    else if (!strcmp(scene, "no_wait"))
        no_wait(true);
    else if (!strcmp(scene, "no_wait_async"))
        no_wait(false);
    else if (!strcmp(scene, "pools"))
        pools();
    else if (!strcmp(scene, "not_served"))
        not_served();
    else if (!strcmp(scene, "shared_pool"))
        shared_pool();
    else if (!strcmp(scene, "shared_too_late"))
        shared_too_late();
    else if (!strcmp(scene, "shared_by_eight"))
        shared_by(8);
    else if (!strcmp(scene, "shared_by_nine"))
        shared_by(9);
    else if (!strcmp(scene, "elsewhere"))
        elsewhere();
    else if (!strcmp(scene, "refused"))
        refused();
    else if (!strcmp(scene, "hopeless"))
        hopeless();
    else
        return 2;
    puts("ok");
    return 0;
}
