/* SPDX-License-Identifier: Apache-2.0 */
/* What a free costs while the device is busy, and what it does to others.
 *
 *   free_latency [--samples N] [latency|side_by_side|captures|flag|flag_full]...
 *
 *   latency       2 busy streams and 32 idle ones: time of cudaFree and cudaMalloc by size
 *   side_by_side  two blocking streams: both together against one alone, without frees, with frees
 *                 between their launches, and with allocations and frees
 *   captures      a capture in each mode, on streams of both kinds, in this and another thread,
 *                 survives 10,000 allocations and frees
 *   flag          a kernel launched after a free ends only when the host, after its next
 *                 allocation, sets a flag
 *   flag_full     the same when the pool is at its maximum: allocates until there is no more
 *
 * Without a part: all but flag_full.  Prints a line for each figure; what they must be is
 * test_latency.py's.  Exit status: 1 when a capture was spoilt, 3 after a hang, 77 without a
 * device. */
#include "gpu_work.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>

enum { BUSY = 2, IDLE = 32, BUSY_US = 4000, SAMPLES_MAX = 10000 };

static unsigned sample_count = 400;
static uint64_t free_ns[SAMPLES_MAX], malloc_ns[SAMPLES_MAX];

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static void sort(uint64_t *numbers, unsigned count)
{
    qsort(numbers, count, sizeof(numbers[0]), ascending);
}

static CUstream create_stream(bool blocking)
{
    CUstream stream;

    MUST(cuStreamCreate(&stream, blocking ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
    return stream;
}

/* ---- latency ---- */

/* Never more than two kernels ahead, so that what is freed is done some day. */
static struct {
    CUstream stream;
    CUevent done[2];
    unsigned launched;
} busy[BUSY];

static bool is_busy(unsigned i)
{
    CUresult result = cuStreamQuery(busy[i].stream);

    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
    return result == CUDA_ERROR_NOT_READY;
}

static void keep_busy(void)
{
    for (unsigned i = 0; i < BUSY; i++) {
        while (busy[i].launched < 2 ||
               cuEventQuery(busy[i].done[busy[i].launched % 2]) == CUDA_SUCCESS) {
            spin(busy[i].stream, BUSY_US);
            MUST(cuEventRecord(busy[i].done[busy[i].launched % 2], busy[i].stream));
            busy[i].launched++;
        }
    }
}

static void latency_of(size_t bytes, unsigned count)
{
    unsigned idle = 0;

    for (unsigned i = 0; i < count + 10; i++) {
        unsigned at = i < 10 ? 0 : i - 10; /* the first ones are not counted */
        uint64_t begin, made, freeing, freed;
        void *block;

        keep_busy();
        begin = now_ns();
        MUST(cudaMalloc(&block, bytes));
        made = now_ns();
        keep_busy(); /* the allocation may have waited */
        freeing = now_ns();
        MUST(cudaFree(block));
        freed = now_ns();
        if (i >= 10 && !(is_busy(0) && is_busy(1)))
            idle++;
        malloc_ns[at] = made - begin;
        free_ns[at] = freed - freeing;
    }
    sort(free_ns, count);
    sort(malloc_ns, count);
    printf("latency bytes %zu free_median %llu free_p99 %llu malloc_median %llu malloc_p99 %llu "
           "samples %u idle_after %u\n",
           bytes, (unsigned long long)free_ns[count / 2],
           (unsigned long long)free_ns[count * 99 / 100], (unsigned long long)malloc_ns[count / 2],
           (unsigned long long)malloc_ns[count * 99 / 100], count, idle);
}

static void latency(void)
{
    CUstream idle[IDLE];
    void *warm;

    for (unsigned i = 0; i < IDLE; i++) {
        idle[i] = create_stream(false);
        spin(idle[i], 1);
    }
    for (unsigned i = 0; i < BUSY; i++) {
        busy[i].stream = create_stream(false);
        MUST(cuEventCreate(&busy[i].done[0], CU_EVENT_DISABLE_TIMING));
        MUST(cuEventCreate(&busy[i].done[1], CU_EVENT_DISABLE_TIMING));
    }
    MUST(cudaDeviceSynchronize());
    MUST(cudaMalloc(&warm, 1000));
    for (unsigned log2 = 8; log2 <= 28; log2 += 4) {
        watchdog("latency", 150);
        latency_of((size_t)1 << log2, log2 > 20 ? (sample_count + 3) / 4 : sample_count);
    }
    MUST(cudaDeviceSynchronize());
    MUST(cudaFree(warm));
    for (unsigned i = 0; i < IDLE; i++)
        MUST(cuStreamDestroy(idle[i]));
    for (unsigned i = 0; i < BUSY; i++)
        MUST(cuStreamDestroy(busy[i].stream));
}

/* ---- side by side ---- */

enum { CHAIN = 12, CHAIN_US = 2000, REPEATS = 5 };
enum between { NOTHING, FREES, PAIRS };

/* A block of 40 MiB is given back at once, a small one joins others. */
static const size_t chain_bytes[2] = {(size_t)40 << 20, 64 << 10};

static uint64_t chains_ns(const CUstream *streams, unsigned count, enum between between)
{
    void *blocks[CHAIN][2];
    uint64_t begin;

    for (unsigned i = 0; between == FREES && i < CHAIN; i++)
        for (unsigned j = 0; j < 2; j++)
            MUST(cudaMalloc(&blocks[i][j], chain_bytes[j]));
    MUST(cudaDeviceSynchronize());
    begin = now_ns();
    for (unsigned i = 0; i < CHAIN; i++) {
        for (unsigned j = 0; j < count; j++) {
            spin(streams[j], CHAIN_US);
            if (between == NOTHING)
                continue;
            if (between == PAIRS)
                MUST(cudaMalloc(&blocks[i][j], chain_bytes[j]));
            MUST(cudaFree(blocks[i][j]));
        }
    }
    MUST(cudaDeviceSynchronize());
    return now_ns() - begin;
}

static double chains_ms(const CUstream *streams, unsigned count, enum between between)
{
    uint64_t times_ns[REPEATS];

    for (unsigned i = 0; i < REPEATS; i++)
        times_ns[i] = chains_ns(streams, count, between);
    sort(times_ns, REPEATS);
    return (double)times_ns[REPEATS / 2] / 1e6;
}

static void side_by_side(void)
{
    CUstream streams[2] = {create_stream(true), create_stream(true)};

    watchdog("side_by_side", 60);
    (void)chains_ns(streams, 2, FREES);
    printf("side_by_side one_ms %.2f", chains_ms(streams, 1, NOTHING));
    printf(" both_ms %.2f", chains_ms(streams, 2, NOTHING));
    printf(" with_frees_ms %.2f", chains_ms(streams, 2, FREES));
    printf(" with_pairs_ms %.2f\n", chains_ms(streams, 2, PAIRS));
    MUST(cuStreamDestroy(streams[0]));
    MUST(cuStreamDestroy(streams[1]));
}

/* ---- captures ---- */

enum { CAPTURE_CALLS = 10000, CAPTURE_LIVE = 16, CAPTURE_LOG2 = 18 };

static struct {
    CUcontext context;
    CUdeviceptr scratch;
    struct sequence sequence;
    unsigned spoilt;
} captures_state;

/* Half of them by the driver API, as a library beside the program might. */
static void *allocate_and_free(void *unused)
{
    struct {
        void *address;
        bool driver;
    } live[CAPTURE_LIVE] = {{NULL, false}};

    (void)unused;
    MUST(cuCtxSetCurrent(captures_state.context));
    for (unsigned i = 0; i < CAPTURE_CALLS + CAPTURE_LIVE; i++) {
        unsigned at = i % CAPTURE_LIVE;
        size_t bytes = sequence_size(&captures_state.sequence, CAPTURE_LOG2);

        if (live[at].address && live[at].driver)
            MUST(cuMemFree((CUdeviceptr)live[at].address));
        else if (live[at].address)
            MUST(cudaFree(live[at].address));
        live[at].address = NULL;
        if (i >= CAPTURE_CALLS)
            continue;
        live[at].driver = i / CAPTURE_LIVE % 2;
        if (live[at].driver)
            MUST(cuMemAlloc((CUdeviceptr *)&live[at].address, bytes));
        else
            MUST(cudaMalloc(&live[at].address, bytes));
    }
    return NULL;
}

static void capture(CUstreamCaptureMode mode, bool blocking, bool elsewhere)
{
    static const char *const mode_names[] = {"global", "thread_local", "relaxed"};
    CUstream stream = create_stream(blocking), working = create_stream(false);
    CUgraph graph = NULL;
    CUresult result;
    size_t nodes = 0;
    pthread_t thread;
    uint64_t begin;

    MUST(cuStreamSynchronize(working));
    spin(working, 5000);
    MUST(cuStreamBeginCapture(stream, mode));
    fill(stream, captures_state.scratch, 64, 1);
    begin = now_ns();
    if (elsewhere) {
        CHECK(!pthread_create(&thread, NULL, allocate_and_free, NULL));
        CHECK(!pthread_join(thread, NULL));
    } else {
        (void)allocate_and_free(NULL);
    }
    begin = now_ns() - begin;
    /* Refused when the capture is spoilt already. */
    (void)cuLaunchKernel(kernels.fill32, 1, 1, 1, 1, 1, 1, 0, stream,
                         (void *[]){&captures_state.scratch, &(uint64_t){64}, &(uint64_t){2}},
                         NULL);
    result = cuStreamEndCapture(stream, &graph);
    if (result == CUDA_SUCCESS && graph)
        MUST(cuGraphGetNodes(graph, NULL, &nodes));
    captures_state.spoilt += result != CUDA_SUCCESS || nodes != 2;
    printf("capture mode %s stream %s thread %s end %d nodes %zu ns_per_call %llu\n",
           mode_names[mode], blocking ? "blocking" : "non_blocking", elsewhere ? "other" : "this",
           (int)result, nodes, (unsigned long long)(begin / (2 * CAPTURE_CALLS)));
    if (graph)
        MUST(cuGraphDestroy(graph));
    MUST(cuStreamDestroy(stream));
    MUST(cuStreamDestroy(working));
}

static void captures(void)
{
    captures_state.sequence.state = 7;
    MUST(cuCtxGetCurrent(&captures_state.context));
    MUST(cuMemAlloc(&captures_state.scratch, 256));
    for (int mode = 0; mode < 3; mode++) {
        for (int variant = 0; variant < 4; variant++) {
            watchdog("captures", 60);
            capture((CUstreamCaptureMode)mode, variant % 2, variant / 2);
        }
    }
    MUST(cuMemFree(captures_state.scratch));
}

/* ---- flag ---- */

enum { FLAG_REPEATS = 3, FULL_MAX = 4096 };

static void flag_round(volatile uint32_t *flag, CUstream stream, const char *name, size_t bytes,
                       void *block)
{
    CUdeviceptr address = (CUdeviceptr)flag;
    uint64_t begin, free_took, malloc_took;
    cudaError_t result;
    void *next = NULL;

    *flag = 0;
    if (!block)
        MUST(cudaMalloc(&block, bytes));
    fill(stream, (CUdeviceptr)block, bytes / 4, 1);
    begin = now_ns();
    MUST(cudaFree(block));
    free_took = now_ns() - begin;
    launch(kernels.spin_until, stream, (void *[]){&address});
    begin = now_ns();
    result = cudaMalloc(&next, bytes);
    malloc_took = now_ns() - begin;
    (void)cudaGetLastError();
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
    MUST(cudaDeviceSynchronize());
    printf("%s bytes %zu free_us %.1f malloc_ms %.2f result %d\n", name, bytes,
           (double)free_took / 1e3, (double)malloc_took / 1e6, (int)result);
    if (next)
        MUST(cudaFree(next));
}

static volatile uint32_t *make_flag(void)
{
    void *flag;

    MUST(cuMemHostAlloc(&flag, sizeof(uint32_t), CU_MEMHOSTALLOC_DEVICEMAP));
    return flag;
}

static void flag_scene(void)
{
    static const size_t sizes[] = {64 << 10, (size_t)40 << 20};
    CUstream streams[3] = {create_stream(false), create_stream(true), NULL};
    static const char *const names[] = {"flag stream non_blocking", "flag stream blocking",
                                        "flag stream null"};
    volatile uint32_t *flag = make_flag();

    for (unsigned i = 0; i < 3 * FLAG_REPEATS; i++) {
        for (unsigned j = 0; j < 2; j++) {
            watchdog("flag", 60);
            flag_round(flag, streams[i % 3], names[i % 3], sizes[j], NULL);
        }
    }
    MUST(cuMemFreeHost((void *)flag));
    MUST(cuStreamDestroy(streams[0]));
    MUST(cuStreamDestroy(streams[1]));
}

static void flag_full(void)
{
    static void *blocks[FULL_MAX];
    volatile uint32_t *flag = make_flag();
    CUstream stream = create_stream(false);
    size_t bytes = (size_t)1 << 20;
    unsigned count = 0;

    watchdog("flag_full: filling", 120);
    while (count < FULL_MAX && cudaMalloc(&blocks[count], bytes) == cudaSuccess)
        count++;
    (void)cudaGetLastError();
    printf("flag_full blocks %u of %zu bytes: %s\n", count, bytes,
           count < FULL_MAX ? "full" : "not full");
    CHECK(count > 1);
    watchdog("flag_full", 100);
    flag_round(flag, stream, "flag_full", bytes, blocks[--count]);
    while (count)
        MUST(cudaFree(blocks[--count]));
    MUST(cuStreamDestroy(stream));
    MUST(cuMemFreeHost((void *)flag));
}

static const struct {
    const char *name;
    void (*run)(void);
    bool wanted_by_default;
} parts[] = {
    {"latency", latency, true}, {"side_by_side", side_by_side, true}, {"captures", captures, true},
    {"flag", flag_scene, true}, {"flag_full", flag_full, false},
};

static int usage(void)
{
    fprintf(stderr, "usage: free_latency [--samples N] "
                    "[latency|side_by_side|captures|flag|flag_full]...\n");
    return 2;
}

int main(int argc, char **argv)
{
    enum { PARTS = sizeof(parts) / sizeof(parts[0]) };
    bool wanted[PARTS] = {false}, any = false;
    CUcontext context;
    CUdevice device;

    for (int i = 1; i < argc; i++) {
        bool known = false;
        if (!strcmp(argv[i], "--samples") && i + 1 < argc) {
            sample_count = (unsigned)atoi(argv[++i]);
            continue;
        }
        for (size_t j = 0; j < PARTS; j++)
            if (!strcmp(argv[i], parts[j].name))
                wanted[j] = any = known = true;
        if (!known)
            return usage();
    }
    if (sample_count < 4 || sample_count > SAMPLES_MAX)
        return usage();
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS)
        return 77;
    watchdog("start", 60);
    MUST(cudaSetDevice(0));
    MUST(cudaFree(NULL));
    MUST(cuCtxGetCurrent(&context));
    CHECK(context);
    gpu_work_load();
    /* Every kernel once: the driver loads them late, and may wait for that. */
    {
        volatile uint32_t *flag = make_flag();
        CUdeviceptr scratch, address = (CUdeviceptr)flag;
        MUST(cuMemAlloc(&scratch, 256));
        *flag = 1;
        fill(NULL, scratch, 64, 1);
        spin(NULL, 1);
        launch(kernels.spin_until, NULL, (void *[]){&address});
        MUST(cudaDeviceSynchronize());
        MUST(cuMemFree(scratch));
        MUST(cuMemFreeHost((void *)flag));
    }
    for (size_t i = 0; i < PARTS; i++)
        if (any ? wanted[i] : parts[i].wanted_by_default)
            parts[i].run();
    return captures_state.spoilt ? 1 : 0;
}
