/* SPDX-License-Identifier: Apache-2.0 */
/* A block that is freed while a kernel writes to it must not be handed out before that kernel is
 * done.  Each round launches such a kernel, frees its block meanwhile, allocates again, fills what
 * it got from another stream and, once the kernel is done, looks whether its own words still stand.
 * Rounds overlap, so that blocks of earlier ones come back while work is in flight.
 *
 *   reuse_safety [--rounds N] [--log2-limit N] [--relaxed] [SCENE]...
 *   reuse_safety --list
 *
 *   --rounds N      of each scene (1000)
 *   --log2-limit N  blocks of at most 2^N bytes (22)
 *   --relaxed       allocate and free in relaxed capture mode, as the driver by itself demands in
 *                   scenes where something captures
 *
 * Prints one line for each scene: rounds; corrupted, rounds in which something was overwritten;
 * early, rounds in which a block came back before its work was done; reused, rounds in which a
 * block freed before was handed out while work was in flight; spoilt captures; and allocations that
 * failed at first.  Exit status: 1 when anything was corrupted, early or spoilt; 3 after a hang; 77
 * without a device. */
#include "gpu_work.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

/* cuCtxCreate means another function, with other parameters, in every major version. */
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);

enum { SLOTS = 2, BLOCKS = 4, HISTORY = 64, SHORT_US = 2000, LONG_US = 10000, LONG_EVERY = 20 };

enum where { CREATED, DESTROYED, NULL_STREAM, PER_THREAD, EXITED_THREAD, GRAPH, CAPTURES_LATER };
enum owner { PRIMARY, SECOND, GREEN };
enum calls { SYNC, DRIVER, RUNTIME, FREE_ASYNC, MANAGED, PINNED };

struct scene {
    const char *name;
    enum where where;
    bool blocking;
    enum owner owner;
    enum calls calls;
    int capture; /* CU_STREAM_CAPTURE_MODE_... of a capture elsewhere, -1: none */
};

static const struct scene scenes[] = {
    {"blocking", CREATED, true, PRIMARY, SYNC, -1},
    {"non_blocking", CREATED, false, PRIMARY, SYNC, -1},
    {"null", NULL_STREAM, true, PRIMARY, SYNC, -1},
    {"per_thread", PER_THREAD, true, PRIMARY, SYNC, -1},
    {"exited_thread", EXITED_THREAD, true, PRIMARY, SYNC, -1},
    {"destroyed_blocking", DESTROYED, true, PRIMARY, SYNC, -1},
    {"destroyed_non_blocking", DESTROYED, false, PRIMARY, SYNC, -1},
    {"second_context", CREATED, false, SECOND, DRIVER, -1},
    {"second_context_null", NULL_STREAM, true, SECOND, DRIVER, -1},
    {"green_null", NULL_STREAM, true, GREEN, DRIVER, -1},
    {"green_blocking", CREATED, true, GREEN, DRIVER, -1},
    {"green_non_blocking", CREATED, false, GREEN, DRIVER, -1},
    {"graph", GRAPH, false, PRIMARY, SYNC, -1},
    {"capture_global", CREATED, false, PRIMARY, SYNC, CU_STREAM_CAPTURE_MODE_GLOBAL},
    {"capture_thread_local", CREATED, false, PRIMARY, SYNC, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
    {"capture_relaxed", CREATED, false, PRIMARY, SYNC, CU_STREAM_CAPTURE_MODE_RELAXED},
    {"captures_later", CAPTURES_LATER, false, PRIMARY, SYNC, -1},
    {"mem_free", CREATED, false, PRIMARY, DRIVER, -1},
    {"runtime_free", CREATED, false, PRIMARY, RUNTIME, -1},
    {"free_async", CREATED, false, PRIMARY, FREE_ASYNC, -1},
    {"managed", CREATED, false, PRIMARY, MANAGED, -1},
    {"pinned", CREATED, false, PRIMARY, PINNED, -1},
};

static struct {
    unsigned rounds, log2_limit;
    bool relaxed;
} settings = {1000, 22, false};

static CUdevice device;
static CUcontext contexts[3]; /* by owner; NULL: this driver has none */

struct range {
    CUdeviceptr begin;
    size_t bytes;
};

struct slot {
    CUevent done; /* of the round's work */
    struct range blocks[BLOCKS];
    unsigned block_count;
    uint32_t value;
    bool waiting; /* for its check */
};

static struct {
    const struct scene *scene;
    CUcontext context;
    CUstream stream, filler, capturing[2]; /* non-blocking, blocking */
    CUdeviceptr counters, scratch;
    struct slot slots[SLOTS];
    struct range freed[HISTORY];
    unsigned freed_count;
    unsigned early, reused, spoilt, failed_first;
    struct sequence sequence;
    void *staging;         /* pinned */
    CUdeviceptr spare;     /* while something captures: to be freed when memory is missing */
    bool capturing_itself; /* its own stream captures; ended when memory is missing */
} now;

/* ---- calls that would spoil a capture, were they not made in relaxed mode ---- */

static void swap_mode(CUstreamCaptureMode *mode)
{
    MUST(cuThreadExchangeStreamCaptureMode(mode));
}

static bool is_done(CUevent event)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult result;

    swap_mode(&mode);
    result = cuEventQuery(event);
    swap_mode(&mode);
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    return result == CUDA_SUCCESS;
}

/* ---- blocks ---- */

static bool through_runtime(unsigned round)
{
    return now.scene->calls == RUNTIME || (now.scene->calls == SYNC && round % 2);
}

static CUresult allocate_once(CUdeviceptr *out, size_t bytes, unsigned round)
{
    if (through_runtime(round)) {
        cudaError_t result = cudaMalloc((void **)out, bytes);
        if (result != cudaSuccess)
            (void)cudaGetLastError();
        return (CUresult)result;
    }
    if (now.scene->calls == MANAGED)
        return cuMemAllocManaged(out, bytes, CU_MEM_ATTACH_GLOBAL);
    if (now.scene->calls == PINNED)
        return cuMemHostAlloc((void **)out, bytes, CU_MEMHOSTALLOC_PORTABLE);
    return cuMemAlloc(out, bytes);
}

static void free_spare(void)
{
    CUdeviceptr spare = now.spare;

    now.spare = 0;
    if (spare)
        MUST(cuMemFree(spare));
}

static void end_capture(CUstream stream);

static void end_own_capture(void)
{
    if (now.capturing_itself)
        end_capture(now.stream);
    now.capturing_itself = false;
}

static CUdeviceptr allocate(size_t bytes, unsigned round)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUdeviceptr block = 0;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;

    if (settings.relaxed)
        swap_mode(&mode);
    for (unsigned tries = 0; tries < 3000 && result == CUDA_ERROR_OUT_OF_MEMORY; tries++) {
        result = allocate_once(&block, bytes, round);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            break;
        /* As programs do then.  Beside a capture a free waits, and no allocation does: blocks that
         * were freed since it began have no fence, and a pool of a fixed size may need them. */
        free_spare();
        end_own_capture();
        now.failed_first += tries == 0;
        usleep(1000);
    }
    if (settings.relaxed)
        swap_mode(&mode);
    MUST(result);
    return block;
}

static void release(struct range block, unsigned round)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    if (settings.relaxed)
        swap_mode(&mode);
    if (through_runtime(round))
        MUST(cudaFree((void *)block.begin));
    else if (now.scene->calls == FREE_ASYNC)
        MUST(cuMemFreeAsync(block.begin, now.stream));
    else if (now.scene->calls == PINNED)
        MUST(cuMemFreeHost((void *)block.begin));
    else
        MUST(cuMemFree(block.begin));
    if (settings.relaxed)
        swap_mode(&mode);
    now.freed[now.freed_count++ % HISTORY] = block;
}

static bool overlap(struct range a, struct range b)
{
    return a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}

static bool was_freed_before(struct range block)
{
    for (unsigned i = 0; i < HISTORY && i < now.freed_count; i++)
        if (overlap(block, now.freed[i]))
            return true;
    return false;
}

/* ---- work ---- */

static void record(struct slot *slot, CUstream stream)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

    swap_mode(&mode);
    MUST(cuEventRecord(slot->done, stream));
    swap_mode(&mode);
}

struct thread_work {
    struct slot *slot;
    struct range block;
    uint64_t us;
};

static void work_on(CUstream stream, const struct thread_work *work)
{
    hold(stream, work->block.begin, work->block.bytes / 4, 0xdead0000u, work->us);
}

static void *work_in_thread(void *argument)
{
    struct thread_work *work = argument;

    MUST(cuCtxSetCurrent(now.context));
    work_on(CU_STREAM_PER_THREAD, work);
    record(work->slot, CU_STREAM_PER_THREAD);
    return NULL;
}

static void work_by_graph(const struct thread_work *work)
{
    CUgraph graph;
    CUgraphExec exec;

    MUST(cuStreamBeginCapture(now.capturing[0], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    work_on(now.capturing[0], work);
    MUST(cuStreamEndCapture(now.capturing[0], &graph));
    MUST(cuGraphInstantiate(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, now.stream));
    record(work->slot, now.stream);
    MUST(cuGraphExecDestroy(exec)); /* lives on until its launch is done */
    MUST(cuGraphDestroy(graph));
}

static void start_work(struct thread_work *work)
{
    pthread_t thread;
    CUstream stream;

    switch (now.scene->where) {
    case EXITED_THREAD:
        CHECK(!pthread_create(&thread, NULL, work_in_thread, work));
        CHECK(!pthread_join(thread, NULL));
        break;
    case DESTROYED:
        MUST(cuStreamCreate(&stream,
                            now.scene->blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
        work_on(stream, work);
        record(work->slot, stream);
        MUST(cuStreamDestroy(stream));
        break;
    case GRAPH:
        work_by_graph(work);
        break;
    default:
        work_on(now.stream, work);
        record(work->slot, now.stream);
    }
}

/* ---- a capture elsewhere ---- */

static struct {
    sem_t asked, answered;
    bool begin, quit;
    CUstream stream;
    CUstreamCaptureMode mode;
} capturer;

static void begin_capture(CUstream stream, CUstreamCaptureMode mode)
{
    MUST(cuStreamBeginCapture(stream, mode));
    fill(stream, now.scratch, 64, 1);
}

static void end_capture(CUstream stream)
{
    CUgraph graph = NULL;
    size_t nodes = 0;
    CUresult result;

    /* Refused when the capture is spoilt already. */
    (void)cuLaunchKernel(kernels.fill32, 1, 1, 1, 1, 1, 1, 0, stream,
                         (void *[]){&now.scratch, &(uint64_t){64}, &(uint64_t){2}}, NULL);
    result = cuStreamEndCapture(stream, &graph);
    if (result == CUDA_SUCCESS && graph)
        MUST(cuGraphGetNodes(graph, NULL, &nodes));
    if (result != CUDA_SUCCESS || nodes != 2)
        now.spoilt++;
    if (graph)
        MUST(cuGraphDestroy(graph));
}

static void *capture_in_thread(void *argument)
{
    (void)argument;
    for (;;) {
        while (sem_wait(&capturer.asked))
            ;
        if (capturer.quit)
            return NULL;
        MUST(cuCtxSetCurrent(now.context));
        if (capturer.begin)
            begin_capture(capturer.stream, capturer.mode);
        else
            end_capture(capturer.stream);
        sem_post(&capturer.answered);
    }
}

static void capture_elsewhere(unsigned round, bool begin)
{
    CUstream stream = now.capturing[round / 4 % 2];
    CUstreamCaptureMode mode = (CUstreamCaptureMode)now.scene->capture;

    if (round / 2 % 2) { /* another thread */
        capturer.begin = begin;
        capturer.stream = stream;
        capturer.mode = mode;
        sem_post(&capturer.asked);
        while (sem_wait(&capturer.answered))
            ;
    } else if (begin) {
        begin_capture(stream, mode);
    } else {
        end_capture(stream);
    }
}

/* ---- rounds ---- */

static size_t some_size(unsigned round)
{
    unsigned log2_limit = settings.log2_limit;
    size_t limit, bytes;

    if (now.scene->calls == MANAGED || now.scene->calls == PINNED)
        log2_limit = log2_limit > 18 ? 18 : log2_limit; /* these are slow to make */
    limit = (size_t)1 << log2_limit;
    if (round % 4 == 3) /* a small one of any magnitude */
        bytes = sequence_size(&now.sequence, log2_limit - 1);
    else
        bytes = limit / 4 + sequence_below(&now.sequence, limit * 3 / 4);
    return (bytes + 15) / 16 * 16;
}

/* The filler's context: a green context's memory is its primary's, and what fills it is not to be
 * held up by what holds it. */
static void use_filler_context(void)
{
    MUST(cuCtxSetCurrent(contexts[now.scene->owner == GREEN ? PRIMARY : now.scene->owner]));
}

static void finish_round(unsigned round)
{
    struct slot *slot = &now.slots[round % SLOTS];

    if (!slot->waiting)
        return;
    MUST(cuEventSynchronize(slot->done));
    use_filler_context();
    for (unsigned i = 0; i < slot->block_count; i++) {
        check(now.filler, slot->blocks[i].begin, slot->blocks[i].bytes / 4, slot->value,
              now.counters + round * sizeof(uint64_t));
        /* Its check may still run: that is work like any other.  But a stream-ordered free orders
         * the block after its own stream alone. */
        if (now.scene->calls == FREE_ASYNC)
            MUST(cuStreamSynchronize(now.filler));
        release(slot->blocks[i], round);
    }
    slot->waiting = false;
    MUST(cuCtxSetCurrent(now.context));
}

static void fill_block(const struct range *block, uint32_t value, bool by_copy)
{
    if (!by_copy) {
        fill(now.filler, block->begin, block->bytes / 4, value);
        return;
    }
    for (size_t i = 0; i < block->bytes / 4; i++)
        ((uint32_t *)now.staging)[i] = value;
    MUST(cuMemcpyHtoDAsync(block->begin, now.staging, block->bytes, now.filler));
    MUST(cuStreamSynchronize(now.filler)); /* before staging changes */
}

/* What the block that is worked on and freed is followed by. */
static unsigned next_sizes(unsigned round, size_t bytes, size_t *sizes)
{
    static const unsigned parts[][BLOCKS + 1] = {{1, 1}, {2, 2, 2}, {2, 1, 4}, {4, 4, 4, 4, 4},
                                                 {1, 1}, {1, 1}}; /* count, then divisors */
    const unsigned *part = parts[round % (sizeof(parts) / sizeof(parts[0]))];

    for (unsigned i = 0; i < part[0]; i++)
        sizes[i] = (bytes / part[1 + i] + 3) / 4 * 4;
    return part[0];
}

static void run_round(unsigned round)
{
    const struct scene *scene = now.scene;
    struct slot *slot = &now.slots[round % SLOTS];
    size_t bytes = some_size(round), sizes[BLOCKS];
    bool captures = scene->capture >= 0, captures_early = round % 8 < 4 && captures;
    bool early = false, reused = false;
    struct thread_work work = {slot, {0, bytes}, round % LONG_EVERY ? SHORT_US : LONG_US};

    if (captures && !settings.relaxed)
        MUST(cuMemAlloc(&now.spare, 512));
    if (captures_early)
        capture_elsewhere(round, true);
    work.block.begin = allocate(bytes, round);
    start_work(&work);
    if (captures && !captures_early)
        capture_elsewhere(round, true);
    if (scene->where == CAPTURES_LATER) {
        begin_capture(now.stream, (CUstreamCaptureMode)(round % 3));
        now.capturing_itself = true;
    }

    /* Memory may be freed and allocated with another context current: under the primary what a
     * green context works on, and the second context's. */
    if (scene->owner != PRIMARY && round % 2)
        MUST(cuCtxSetCurrent(contexts[PRIMARY]));
    release(work.block, round);
    if (scene->owner != GREEN || round % 4 < 2)
        MUST(cuCtxSetCurrent(now.context));
    slot->block_count = next_sizes(round, bytes, sizes);
    slot->value = 0x600d0000u + round;
    for (unsigned i = 0; i < slot->block_count; i++) {
        struct range *block = &slot->blocks[i];
        *block = (struct range){allocate(sizes[i], round), sizes[i]};
        if (!is_done(slot->done)) {
            early |= overlap(*block, work.block);
            reused |= was_freed_before(*block);
        }
    }
    use_filler_context();
    for (unsigned i = 0; i < slot->block_count; i++)
        fill_block(&slot->blocks[i], slot->value,
                   round % 3 == 1 && !captures && scene->where != CAPTURES_LATER);
    end_own_capture();
    if (captures)
        capture_elsewhere(round, false);
    free_spare();
    MUST(cuCtxSetCurrent(now.context));
    slot->waiting = true;
    now.early += early;
    now.reused += reused;
}

/* ---- scenes ---- */

static void create_stream(CUstream *stream, bool blocking)
{
    MUST(cuStreamCreate(stream, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
}

static void set_up(const struct scene *scene)
{
    memset(&now, 0, sizeof(now));
    now.scene = scene;
    now.context = contexts[scene->owner];
    now.sequence.state = 4;
    MUST(cuCtxSetCurrent(now.context));
    for (unsigned i = 0; i < SLOTS; i++)
        MUST(cuEventCreate(&now.slots[i].done, CU_EVENT_DISABLE_TIMING));
    if (scene->where == NULL_STREAM)
        now.stream = NULL;
    else if (scene->where == PER_THREAD)
        now.stream = CU_STREAM_PER_THREAD;
    else
        create_stream(&now.stream, scene->blocking);
    use_filler_context();
    create_stream(&now.filler, false);
    create_stream(&now.capturing[0], false);
    create_stream(&now.capturing[1], true);
    MUST(cuMemAlloc(&now.counters, settings.rounds * sizeof(uint64_t)));
    MUST(cuMemAlloc(&now.scratch, 256));
    MUST(cuMemsetD8Async(now.counters, 0, settings.rounds * sizeof(uint64_t), now.filler));
    MUST(cuMemHostAlloc(&now.staging, (size_t)1 << settings.log2_limit, 0));
    MUST(cuCtxSetCurrent(now.context));

    /* Every kernel once: the driver loads them late, and may wait for that. */
    hold(now.stream, now.scratch, 64, 0, 0);
    MUST(cuStreamSynchronize(now.stream));
    use_filler_context();
    fill(now.filler, now.scratch, 64, 0);
    check(now.filler, now.scratch, 64, 0, now.counters);
    MUST(cuStreamSynchronize(now.filler));
    MUST(cuCtxSetCurrent(now.context));
}

static void tear_down(void)
{
    MUST(cuCtxSetCurrent(now.context));
    MUST(cuMemFreeHost(now.staging));
    MUST(cuMemFree(now.counters));
    MUST(cuMemFree(now.scratch));
    MUST(cuStreamDestroy(now.filler));
    MUST(cuStreamDestroy(now.capturing[0]));
    MUST(cuStreamDestroy(now.capturing[1]));
    if (now.scene->where != NULL_STREAM && now.scene->where != PER_THREAD)
        MUST(cuStreamDestroy(now.stream));
    for (unsigned i = 0; i < SLOTS; i++)
        MUST(cuEventDestroy(now.slots[i].done));
}

static bool run_scene(const struct scene *scene)
{
    unsigned rounds = settings.rounds, corrupted = 0;
    uint64_t begin_ns = now_ns(), *counts;

    watchdog(scene->name, 40 + rounds / 20);
    if (!contexts[scene->owner]) {
        printf("%-23s skipped\n", scene->name);
        return true;
    }
    set_up(scene);
    for (unsigned round = 0; round < rounds; round++) {
        if (round >= SLOTS)
            finish_round(round - SLOTS);
        run_round(round);
    }
    for (unsigned round = rounds > SLOTS ? rounds - SLOTS : 0; round < rounds; round++)
        finish_round(round);

    counts = calloc(rounds, sizeof(*counts));
    CHECK(counts);
    MUST(cuMemcpyDtoHAsync(counts, now.counters, rounds * sizeof(*counts), now.filler));
    MUST(cuStreamSynchronize(now.filler));
    MUST(cuStreamSynchronize(now.stream));
    for (unsigned round = 0; round < rounds; round++)
        corrupted += counts[round] != 0;
    free(counts);
    tear_down();
    printf("%-23s rounds %u corrupted %u early %u reused %u spoilt %u failed_first %u "
           "seconds %.1f\n",
           scene->name, rounds, corrupted, now.early, now.reused, now.spoilt, now.failed_first,
           (double)(now_ns() - begin_ns) / 1e9);
    return !corrupted && !now.early && !now.spoilt;
}

/* Needs a newer driver than other things here; without it its scenes are skipped. */
static void create_green(void)
{
#if CUDA_VERSION >= 12040
    __typeof__(&cuDeviceGetDevResource) get_resource;
    __typeof__(&cuDevSmResourceSplitByCount) split;
    __typeof__(&cuDevResourceGenerateDesc) generate;
    __typeof__(&cuGreenCtxCreate) create;
    __typeof__(&cuCtxFromGreenCtx) from_green;
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"cuDeviceGetDevResource", &get_resource}, {"cuDevSmResourceSplitByCount", &split},
        {"cuDevResourceGenerateDesc", &generate},  {"cuGreenCtxCreate", &create},
        {"cuCtxFromGreenCtx", &from_green},
    };
    CUdevResource all, part;
    CUdevResourceDesc description;
    CUgreenCtx green;
    unsigned groups = 1;

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        CUdriverProcAddressQueryResult found;
        if (cuGetProcAddress(wanted[i].name, wanted[i].function, 12040, 0, &found) !=
                CUDA_SUCCESS ||
            found != CU_GET_PROC_ADDRESS_SUCCESS)
            return;
    }
    if (get_resource(device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        split(&part, &groups, &all, NULL, 0, 16) != CUDA_SUCCESS ||
        generate(&description, &part, 1) != CUDA_SUCCESS ||
        create(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS)
        return;
    MUST(from_green(&contexts[GREEN], green));
#endif
}

static int usage(void)
{
    fprintf(stderr,
            "usage: reuse_safety [--rounds N] [--log2-limit N] [--relaxed] [SCENE]...\nscenes:");
    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
        fprintf(stderr, " %s", scenes[i].name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    enum { SCENES = sizeof(scenes) / sizeof(scenes[0]) };
    bool wanted[SCENES] = {false}, any = false, good = true;
    pthread_t thread;

    for (int i = 1; i < argc; i++) {
        bool known = false;
        if (!strcmp(argv[i], "--list")) {
            for (size_t j = 0; j < SCENES; j++)
                puts(scenes[j].name);
            return 0;
        }
        if (!strcmp(argv[i], "--relaxed")) {
            settings.relaxed = true;
            continue;
        }
        if (!strcmp(argv[i], "--rounds") && i + 1 < argc) {
            settings.rounds = (unsigned)atoi(argv[++i]);
            continue;
        }
        if (!strcmp(argv[i], "--log2-limit") && i + 1 < argc) {
            settings.log2_limit = (unsigned)atoi(argv[++i]);
            continue;
        }
        for (size_t j = 0; j < SCENES; j++)
            if (!strcmp(argv[i], scenes[j].name))
                wanted[j] = any = known = true;
        if (!known)
            return usage();
    }
    if (!settings.rounds || settings.log2_limit < 10 || settings.log2_limit > 28)
        return usage();

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS)
        return 77;
    MUST(cuDevicePrimaryCtxRetain(&contexts[PRIMARY], device));
    MUST(cuCtxCreate_v2(&contexts[SECOND], 0, device));
    MUST(cuCtxSetCurrent(contexts[PRIMARY]));
    MUST(cudaSetDevice(0));
    create_green();
    MUST(cuCtxSetCurrent(contexts[PRIMARY]));
    gpu_work_load();
    sem_init(&capturer.asked, 0, 0);
    sem_init(&capturer.answered, 0, 0);
    CHECK(!pthread_create(&thread, NULL, capture_in_thread, NULL));
    for (size_t i = 0; i < SCENES; i++)
        if (any ? wanted[i] : true)
            good &= run_scene(&scenes[i]);
    capturer.quit = true;
    sem_post(&capturer.asked);
    CHECK(!pthread_join(thread, NULL));
    return good ? 0 : 1;
}
