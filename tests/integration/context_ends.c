/* SPDX-License-Identifier: Apache-2.0 */
/* What a context had while its end is under way, and afterwards: the driver may have given its
 * addresses to others, or refuse the end.
 *
 *   context_ends SCENE [SEED]     prints "ok", or what is wrong */
#include "ending_contexts.h"
#include "rmmshim/rmmshim.h"

#include <stdlib.h>
#include <string.h>

#pragma weak rmmshim_get_statistics
#pragma weak rmmshim_get_statistics_of

/* ---- addresses of a context that ends ---- */

enum { OLD_BLOCKS = 8, OLD_BYTES = 4 << 20, WIDE_BYTES = 30 << 20 };

static bool has_handles; /* memory under these settings has IPC handles */

/* How a context ends: in its own thread, which does not come back until it is told. */
struct end {
    CUcontext context; /* that ends; the device's primary one, unless it is destroyed */
    CUcontext beside;  /* which is current afterwards */
    CUdeviceptr blocks[OLD_BLOCKS];
    pthread_t thread;
};

static const struct way {
    const char *name, *call;
    void *(*end)(void *context);
    bool is_primary;
} ways[] = {
    {"destroy", "cuCtxDestroy", destroy, false},
    {"reset", "cuDevicePrimaryCtxReset", reset, true},
    {"release", "cuDevicePrimaryCtxRelease", release, true},
};

static CUcontext create(void)
{
    CUcontext context;

    MUST(cuCtxCreate_v2(&context, 0, device));
    MUST(cuCtxSetCurrent(context));
    return context;
}

/* A context with blocks, and another one, in which the rest of the scene plays. */
static struct end make_end(const struct way *way)
{
    CUipcMemHandle handle;
    CUdeviceptr block;
    struct end end;

    end.beside = way->is_primary ? create() : retain();
    block = allocate();
    has_handles = cuIpcGetMemHandle(&handle, block) == CUDA_SUCCESS;
    MUST(cuMemFree(block));
    end.context = way->is_primary ? retain() : create();
    for (int i = 0; i < OLD_BLOCKS; i++)
        MUST(cuMemAlloc(&end.blocks[i], OLD_BYTES));
    MUST(cuCtxSetCurrent(end.beside));
    return end;
}

/* The driver has ended the context when this returns, and its call has not. */
static void end_late(struct end *end, const struct way *way)
{
    size_t before = hostcuda_used_bytes(device);
    char rule[80];

    snprintf(rule, sizeof(rule), "%s:after_us=600000000:count=1", way->call);
    delay(rule);
    end->thread = start(way->end, end->context);
    while (hostcuda_used_bytes(device) >= before)
        sched_yield();
}

static void check_range(CUdeviceptr address, CUdeviceptr begin, size_t bytes)
{
    CUdeviceptr base = 0;
    size_t size = 0;

    MUST(cuMemGetAddressRange(&base, &size, address));
    CHECK(base == begin && size == bytes);
}

/* All calls about an address say what they say of memory that lives. */
static void check_living(CUdeviceptr block, size_t bytes, bool is_ours)
{
    CUdeviceptr last = block + bytes - 1;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 0;
    int ordinal = -1;
    CUipcMemHandle handle;

    check_range(block, block, bytes);
    check_range(last, block, bytes);
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, last));
    CHECK(type == CU_MEMORYTYPE_DEVICE);
    type = 0;
    MUST(cuPointerGetAttributes(2, attributes, (void *[]){&type, &ordinal}, last));
    CHECK(type == CU_MEMORYTYPE_DEVICE && ordinal == device);
    if (is_ours && has_handles)
        MUST(cuIpcGetMemHandle(&handle, last));
}

/* Ends both contexts.  Nothing is left of what the program freed, or lost with a context. */
static void end_all(const struct end *end, const struct way *way)
{
    struct rmmshim_statistics statistics = {.size = sizeof(statistics)};

    if (way->is_primary)
        MUST(cuCtxDestroy(end->beside));
    if (way->end != release)
        MUST(cuDevicePrimaryCtxRelease(device));
    CHECK(!is_active());
    if (!rmmshim_get_statistics)
        return;
    CHECK(rmmshim_get_statistics(device, &statistics) == 0);
    CHECK(statistics.used_blocks == 0 && statistics.used_bytes == 0);
    CHECK(statistics.allocations == statistics.frees);
}

/* The driver gives the addresses to others before its call returns: one wide block over several old
 * ones, as many as the old ones, small ones within an old one, and memory of the driver's own. */
static void reused(const struct way *way)
{
    struct end end = make_end(way);
    CUdeviceptr wide, again[OLD_BLOCKS], small[OLD_BLOCKS], ordered;
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    end_late(&end, way);
    MUST(cuMemAlloc(&wide, WIDE_BYTES));
    check_living(wide, WIDE_BYTES, true);
    MUST(cuMemFree(wide));
    CHECK(cuMemFree(wide) != CUDA_SUCCESS);
    for (int i = 0; i < OLD_BLOCKS; i++)
        MUST(cuMemAlloc(&again[i], OLD_BYTES));
    for (int i = 0; i < OLD_BLOCKS; i++)
        MUST(cuMemAlloc(&small[i], OLD_BYTES / OLD_BLOCKS / 2));
    MUST(cuMemAllocAsync(&ordered, WIDE_BYTES, stream));
    MUST(cuStreamSynchronize(stream));
    check_living(ordered, WIDE_BYTES, false);
    for (int i = 0; i < OLD_BLOCKS; i++) {
        check_living(again[i], OLD_BYTES, true);
        check_living(small[i], OLD_BYTES / OLD_BLOCKS / 2, true);
    }
    for (int i = 0; i < OLD_BLOCKS / 2; i++)
        MUST(cuMemFree(small[i]));
    MUST(cuMemFreeAsync(ordered, stream));
    MUST(cuMemAllocAsync(&ordered, OLD_BYTES, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemFree(again[0]));
    finish_delayed(end.thread);
    for (int i = OLD_BLOCKS / 2; i < OLD_BLOCKS; i++) {
        check_living(small[i], OLD_BYTES / OLD_BLOCKS / 2, true);
        MUST(cuMemFree(small[i]));
    }
    for (int i = 1; i < OLD_BLOCKS; i++) {
        check_living(again[i], OLD_BYTES, true);
        MUST(cuMemFree(again[i]));
    }
    check_living(ordered, OLD_BYTES, false);
    MUST(cuMemFreeAsync(ordered, stream));
    end_all(&end, way);
}

static void addresses_reused(void)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        reused(&ways[i]);
}

/* Memory of the driver's own begins where a block of the context began. */
static void reused_by_driver(const struct way *way)
{
    struct end end = make_end(way);
    size_t used;
    CUdeviceptr ordered[2 * OLD_BLOCKS];
    CUstream stream;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    end_late(&end, way);
    used = hostcuda_used_bytes(device);
    for (int i = 0; i < 2 * OLD_BLOCKS; i++) {
        MUST(cuMemAllocAsync(&ordered[i], OLD_BYTES, stream));
        MUST(cuStreamSynchronize(stream));
    }
    for (int i = 0; i < 2 * OLD_BLOCKS; i++)
        if (i % 2)
            MUST(cuMemFreeAsync(ordered[i], stream));
        else
            MUST(cuMemFree(ordered[i]));
    MUST(cuStreamSynchronize(stream));
    CHECK(hostcuda_used_bytes(device) == used);
    finish_delayed(end.thread);
    end_all(&end, way);
}

static void addresses_reused_by_driver(void)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
        reused_by_driver(&ways[i]);
}

/* A new context has the handle before the old one is forgotten, and what it was given stays. */
static void handle_reused(void)
{
    CUcontext far, old, again;
    CUdeviceptr block;
    pthread_t thread;
    size_t before;

    MUST(cuDevicePrimaryCtxRetain(&far, 1));
    MUST(cuCtxSetCurrent(far));
    gpu_work_load();
    old = create();
    (void)allocate();
    before = hostcuda_used_bytes(device);
    delay("cuCtxDestroy:after_us=600000000:count=1");
    thread = start(destroy, old);
    while (hostcuda_used_bytes(device) >= before)
        sched_yield();
    again = create();
    CHECK(again == old);
    MUST(cuCtxSetCurrent(far));
    MUST(cuCtxEnablePeerAccess(again, 0));
    finish_delayed(thread);
    MUST(cuCtxSetCurrent(again));
    block = allocate();
    MUST(cuMemsetD32(block, 1, WORDS));
    MUST(cuCtxSynchronize());
    MUST(cuCtxSetCurrent(far));
    add_one(NULL, block, WORDS);
    MUST(cuCtxSynchronize());
}

/* The driver refuses the end, or another reference is left: all is as before, and a call in between
 * does no harm. */
static void *end_refused(void *data)
{
    const struct end *end = data;

    CHECK(cuCtxDestroy(end->context) == CUDA_ERROR_INVALID_VALUE);
    return NULL;
}

static void *reset_refused(void *data)
{
    (void)data;
    CHECK(cuDevicePrimaryCtxReset(device) == CUDA_ERROR_INVALID_VALUE);
    return NULL;
}

static void check_as_before(struct end *end)
{
    for (int i = 0; i < OLD_BLOCKS; i++)
        check_living(end->blocks[i], OLD_BYTES, true);
    MUST(cuCtxSetCurrent(end->context));
    for (int i = 0; i < OLD_BLOCKS; i++) {
        MUST(cuMemFree(end->blocks[i]));
        CHECK(cuMemFree(end->blocks[i]) == CUDA_ERROR_INVALID_VALUE);
    }
    use_now();
}

static void end_that_fails(void)
{
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct end end;
        char rule[80];

        if (ways[i].end != destroy && ways[i].end != reset)
            continue;
        end = make_end(&ways[i]);
        snprintf(rule, sizeof(rule), "%s:" UNTIL_TOLD ":code=1:count=1", ways[i].call);
        delay(rule);
        end.thread = start(ways[i].is_primary ? reset_refused : end_refused, &end);
        wait_for_delay();
        /* The driver would free what other blocks lie in. */
        for (int j = 0; j < OLD_BLOCKS; j++)
            CHECK(cuMemFree(end.blocks[j]) == CUDA_ERROR_INVALID_VALUE);
        finish_delayed(end.thread);
        check_as_before(&end);
    }
}

static void reference_left(void)
{
    CUcontext primary = retain();
    struct end end;

    MUST(cuDevicePrimaryCtxRetain(&primary, device));
    end = make_end(&ways[2]);
    CHECK(end.context == primary);
    delay("cuDevicePrimaryCtxRelease:" UNTIL_TOLD ":count=1");
    end.thread = start(release, NULL);
    wait_for_delay();
    check_living(end.blocks[0], OLD_BYTES, true);
    MUST(cuMemFree(end.blocks[0]));
    CHECK(cuMemFree(end.blocks[0]) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuCtxSetCurrent(primary));
    MUST(cuMemAlloc(&end.blocks[0], OLD_BYTES));
    check_living(end.blocks[0], OLD_BYTES, true);
    finish_delayed(end.thread);
    CHECK(is_active());
    check_as_before(&end);
}

/* ---- random ends ---- */

enum { RANDOM_THREADS = 5, RANDOM_STEPS = 60, RANDOM_BLOCKS = 12 };

static uint64_t seed;

/* A thread and its context: the primary one for thread 0, one that it creates for the others;
 * thread 1 keeps its own to the end.  Blocks of a kind (0: device, 1: pinned, 2: the driver's own).
 */
struct player {
    unsigned number;
    uint64_t random;
    CUcontext context; /* NULL: it has none now */
    CUstream stream;
    struct {
        CUdeviceptr at;
        size_t bytes;
        unsigned kind;
    } blocks[RANDOM_BLOCKS];
    unsigned count;
};

static unsigned draw(struct player *player, unsigned below)
{
    player->random ^= player->random << 13;
    player->random ^= player->random >> 7;
    player->random ^= player->random << 17;
    return (unsigned)((player->random >> 11) % below);
}

static void come(struct player *player)
{
    player->context = player->number == 0 ? retain() : create();
    MUST(cuStreamCreate(&player->stream, CU_STREAM_NON_BLOCKING));
}

static void give(struct player *player, unsigned index)
{
    CUdeviceptr at = player->blocks[index].at;

    if (player->blocks[index].kind == 1)
        MUST(cuMemFreeHost((void *)(uintptr_t)at));
    else if (player->blocks[index].kind == 2 || draw(player, 4) == 0)
        MUST(cuMemFreeAsync(at, player->stream));
    else
        MUST(cuMemFree(at));
    player->blocks[index] = player->blocks[--player->count];
}

/* What dies with its context is mostly left to it. */
static void go(struct player *player)
{
    for (unsigned i = player->count; i-- > 0;)
        if (player->blocks[i].kind == 2 || draw(player, 4) == 0)
            give(player, i);
    player->count = 0;
    MUST(cuStreamSynchronize(player->stream));
    if (player->number != 0)
        MUST(cuCtxDestroy(player->context));
    else if (draw(player, 2))
        MUST(cuDevicePrimaryCtxRelease(device));
    else {
        MUST(cuDevicePrimaryCtxReset(device));
        MUST(cuDevicePrimaryCtxRelease(device));
    }
    player->context = NULL;
}

static void take(struct player *player)
{
    size_t bytes = (size_t)(1 + draw(player, 16)) << (9 + draw(player, 10));
    unsigned kind = draw(player, 5);
    CUdeviceptr at = 0;
    void *host;

    kind = kind < 3 ? 0 : kind - 2;
    if (kind == 1) {
        MUST(cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE));
        at = (CUdeviceptr)(uintptr_t)host;
    } else if (kind == 2) {
        MUST(cuMemAllocAsync(&at, bytes, player->stream));
        MUST(cuStreamSynchronize(player->stream));
    } else {
        MUST(cuMemAlloc(&at, bytes));
    }
    player->blocks[player->count].at = at;
    player->blocks[player->count].bytes = bytes;
    player->blocks[player->count++].kind = kind;
}

static void look(struct player *player, unsigned index)
{
    CUdeviceptr at = player->blocks[index].at;
    size_t bytes = player->blocks[index].bytes;
    unsigned type = 0;

    if (player->blocks[index].kind != 2) /* the driver rounds its own up */
        check_range(at + draw(player, (unsigned)bytes), at, bytes);
    MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                               at + draw(player, (unsigned)bytes)));
    CHECK(type == (player->blocks[index].kind == 1 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
}

static void *play(void *data)
{
    struct player *player = data;

    for (int step = 0; step < RANDOM_STEPS; step++) {
        if (!player->context)
            come(player);
        if (player->count == RANDOM_BLOCKS || (player->count && draw(player, 3) == 0))
            give(player, draw(player, player->count));
        else
            take(player);
        if (player->count)
            look(player, draw(player, player->count));
        if (player->number != 1 && draw(player, 6) == 0)
            go(player);
    }
    if (player->context)
        go(player);
    return NULL;
}

static void check_random_left(void)
{
    struct rmmshim_statistics statistics = {.size = sizeof(statistics)};

    for (int kind = 0; rmmshim_get_statistics_of && kind < 3; kind++) {
        CHECK(rmmshim_get_statistics_of(device, kind, &statistics) == 0);
        CHECK(statistics.used_blocks == 0 && statistics.used_bytes == 0);
        CHECK(statistics.allocations == statistics.frees);
        CHECK(statistics.total_bytes == 0 && statistics.charged_bytes == 0);
    }
}

/* Contexts come and go while other threads allocate.  Each block is always what it is, and at the
 * end nothing is counted. */
static void random_ends(void)
{
    static struct player players[RANDOM_THREADS];
    pthread_t threads[RANDOM_THREADS];

    for (unsigned i = 0; i < RANDOM_THREADS; i++) {
        players[i].number = i;
        players[i].random = (seed * RANDOM_THREADS + i + 1) * 0x9e3779b97f4a7c15u;
        threads[i] = start(play, &players[i]);
    }
    for (unsigned i = 0; i < RANDOM_THREADS; i++)
        finish(threads[i]);
    check_random_left();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } scenes[] = {
        {"addresses_reused", addresses_reused},
        {"addresses_reused_by_driver", addresses_reused_by_driver},
        {"end_that_fails", end_that_fails},
        {"handle_reused", handle_reused},
        {"reference_left", reference_left},
        {"random_ends", random_ends},
    };

    setvbuf(stdout, NULL, _IONBF, 0);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    for (size_t i = 0; argc > 1 && i < sizeof(scenes) / sizeof(scenes[0]); i++)
        if (!strcmp(argv[1], scenes[i].name)) {
            watchdog(argv[1], ENOUGH_S);
            scenes[i].run();
            puts("ok");
            return 0;
        }
    fprintf(stderr, "usage: context_ends SCENE [SEED]\n");
    return 2;
}
