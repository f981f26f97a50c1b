/* SPDX-License-Identifier: Apache-2.0 */
/* A random program on a device, or under a limit, that is nearly full.  Each thread has a share and
 * never holds more, so the memory that is live stays under a fraction of the room: `refused` on the
 * last line counts what was refused all the same, and `again` of these what was served when it was
 * asked for once more, at once.  Alone, on a device of that size, the driver
 * refuses nothing below 95 %: its own frees wait, and it maps pages wherever they lie.
 *
 * A block's use is ordered by its stream alone, and most frees come while kernels work on the
 * block, so with HOSTCUDA_RACE=1 a report is a mistake of whoever handed the memory out.
 *
 * pressure SEED OPERATIONS [option...]
 *   threads=N     instead of a random number from 2 to 6
 *   room=BYTES    instead of what the device has left beside its contexts
 *   percent=N     of the room that is live at most (80)
 *   equal=BYTES   every request is of this size; the room is divided without a rest
 *   largest=BYTES of a request
 *   powers        requests are powers of two
 *   pages         a small request counts as a page of the driver's, 2 MiB, too
 *   paths=LIST    letters: r cudaMalloc, d cuMemAlloc, m cuMemAllocManaged, s cuMemAllocAsync,
 *                 v cuMemCreate, a cuArrayCreate, h cuMemHostAlloc (rd)
 *   host=BYTES    of host memory that can be pinned, of which h takes percent (64 MiB)
 *   contexts=N    1 the primary, 2 and one of its own, 3 and a green one
 *   idle          a block's work is done when it is freed
 *   flags=N       so many kernels wait for the host, which allocates first
 *   captures      streams capture while allocations and frees go on
 *   ends=N        so many threads make contexts (c), allocate in them and destroy them, again and
 * again trims         a thread calls rmmshim_trim() again and again, where the library is there
 *   commands=TOOL a thread has TOOL, the command rmmshim, trim this process again and again
 *   limit=BYTES   and set the same limit again
 *   stall=SECONDS a thread without progress for so long ends the program with status 3 (200) */
#include "hostcuda.h"
#include "hostcudart.h"

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROGRAM "pressure"
#include "failure.h"
#include "note.h"
#include "requests.h"

unsigned long long seed;

enum {
    THREADS_MAX = 16,
    BLOCKS_MAX = 64,
    LANES = 3,
    CONTEXTS_MAX = 3,
    EDGE_WORDS = 64, /* what kernels touch at each end of a block */
    FLAG_WORDS = 64,
    LONG_MS = 1000,
};
#define PAGE_BYTES  ((size_t)2 << 20)
#define SMALL_BYTES ((size_t)1 << 20) /* above, a request takes pages of its own */

/* CONTEXT is a context's own memory, and no path of a block. */
enum path { RUNTIME, DRIVER, MANAGED, STREAM, MAPPED, ARRAY, HOST, CONTEXT, PATHS };
static const char letters[PATHS + 1] = "rdmsvahc";

struct block {
    enum path path;
    CUdeviceptr at;
    CUarray array;
    size_t bytes, taken_bytes; /* taken: as the driver counts */
    unsigned lane, value;
    bool is_filled;
};

struct lane {
    CUstream stream;
    size_t leaving_bytes; /* freed in the stream's order, which has not come there yet */
    bool captures;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    unsigned long long operations;
    CUcontext context;
    struct lane lanes[LANES];
    struct block blocks[BLOCKS_MAX];
    unsigned block_count;
    size_t share_bytes, live_bytes, small_bytes;
    size_t host_share_bytes, host_live_bytes;
    unsigned flag; /* index in flags; its kernel waits if is_waiting */
    bool is_waiting;
    unsigned capture_steps;
    bool ends_contexts;
    unsigned long long allocations[PATHS], refusals[PATHS], served_again, longest_ms;
    unsigned long long first_refusal;
    const char *volatile doing;
    _Atomic unsigned long long progress;
    _Atomic bool is_over;
};

static struct worker workers[THREADS_MAX];
static unsigned thread_count, ending_count; /* of the threads, the last ones end contexts */
static CUcontext contexts[CONTEXTS_MAX];
static CUgreenCtx green;
static unsigned context_count;
static enum path paths[PATHS];
static unsigned path_count;
static size_t equal_bytes, largest_bytes;
static _Atomic int flags_left;
static bool wants_captures, wants_powers, counts_pages, drains_first;
static unsigned stall_s;
static unsigned *wrong_words, *flags; /* pinned */

static uint64_t draw(struct worker *worker, uint64_t below)
{
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    return (worker->random >> 11) % below;
}

static bool chance(struct worker *worker, unsigned percent)
{
    return draw(worker, 100) < percent;
}

/* ---- what is live, as the driver counts ---- */

static size_t round_up(size_t bytes, size_t step)
{
    return (bytes + step - 1) / step * step;
}

/* Small mappings have a page; small arrays and managed blocks are charged one under a limit. */
static bool is_small(enum path path, size_t bytes)
{
    return bytes <= SMALL_BYTES && !counts_pages && path != MAPPED && path != ARRAY &&
           path != MANAGED && path != HOST;
}

static size_t taken_by(enum path path, size_t bytes)
{
    return round_up(bytes, is_small(path, bytes) ? 512 : PAGE_BYTES);
}

/* Small blocks share pages and leave gaps in them, so they are a small part. */
static bool fits(const struct worker *worker, enum path path, size_t bytes)
{
    size_t taken_bytes = taken_by(path, bytes);

    if (path == HOST)
        return taken_bytes <= worker->host_share_bytes - worker->host_live_bytes;
    if (taken_bytes > worker->share_bytes - worker->live_bytes)
        return false;
    return !is_small(path, bytes) || equal_bytes ||
           worker->small_bytes + taken_bytes <= worker->share_bytes / 16;
}

static void count_live(struct worker *worker, const struct block *block)
{
    if (block->path == HOST) {
        worker->host_live_bytes += block->taken_bytes;
        return;
    }
    worker->live_bytes += block->taken_bytes;
    if (block->taken_bytes < PAGE_BYTES)
        worker->small_bytes += block->taken_bytes;
}

static void count_gone(struct worker *worker, const struct block *block)
{
    if (block->path == HOST) {
        worker->host_live_bytes -= block->taken_bytes;
        return;
    }
    worker->live_bytes -= block->taken_bytes;
    if (block->taken_bytes < PAGE_BYTES)
        worker->small_bytes -= block->taken_bytes;
}

/* ---- allocations ---- */

static size_t draw_bytes(struct worker *worker)
{
    unsigned low = 9, high = 9;
    size_t bytes;

    if (equal_bytes)
        return equal_bytes;
    while ((size_t)1 << (high + 1) <= largest_bytes)
        high++;
    /* mostly what fills the memory */
    if (chance(worker, 70) && high > 21)
        low = 20;
    low += (unsigned)draw(worker, high - low);
    bytes = (size_t)1 << low;
    if (!wants_powers)
        bytes += draw(worker, bytes);
    return bytes;
}

static CUresult map_new(struct block *block)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location.type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle handle;
    CUresult answer = cuMemCreate(&handle, block->taken_bytes, &prop, 0);

    if (answer)
        return answer;
    OK(cuMemAddressReserve(&block->at, block->taken_bytes, 0, 0, 0));
    OK(cuMemMap(block->at, block->taken_bytes, 0, handle, 0));
    OK(cuMemSetAccess(block->at, block->taken_bytes, &access, 1));
    OK(cuMemRelease(handle));
    return CUDA_SUCCESS;
}

static void map_end(const struct block *block)
{
    OK(cuMemUnmap(block->at, block->taken_bytes));
    OK(cuMemAddressFree(block->at, block->taken_bytes));
}

static CUresult array_new(struct block *block)
{
    CUDA_ARRAY_DESCRIPTOR shape = {
        .Width = 4096, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 1};

    shape.Height = block->bytes / shape.Width ? block->bytes / shape.Width : 1;
    return cuArrayCreate_v2(&block->array, &shape);
}

static unsigned long long now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000 + (unsigned long long)now.tv_nsec / 1000000;
}

static CUresult take_once(struct worker *worker, struct block *block)
{
    CUstream stream = worker->lanes[block->lane].stream;
    CUresult answer = CUDA_SUCCESS;

    switch (block->path) {
    case RUNTIME:
        answer = (CUresult)cudaMalloc((void **)&block->at, block->bytes);
        break;
    case DRIVER:
        answer = cuMemAlloc_v2(&block->at, block->bytes);
        break;
    case MANAGED:
        answer = cuMemAllocManaged(&block->at, block->bytes, CU_MEM_ATTACH_GLOBAL);
        break;
    case STREAM:
        return cuMemAllocAsync(&block->at, block->bytes, stream);
    case MAPPED:
        return map_new(block);
    case ARRAY:
        return array_new(block);
    case HOST:
        answer = cuMemHostAlloc((void **)&block->at, block->bytes,
                                chance(worker, 10) ? CU_MEMHOSTALLOC_WRITECOMBINED : 0);
        break;
    case CONTEXT:
    case PATHS:
        break;
    }
    if (!answer) {
        /* The runtime may have told the detector too: twice does no harm. */
        hostcuda_note_free((void *)block->at);
        hostcuda_note_allocate((void *)block->at, block->bytes);
    }
    return answer;
}

static void end_wait(struct worker *worker);

/* A program whose request took long does not make its kernel wait for more of them. */
static CUresult take(struct worker *worker, struct block *block)
{
    unsigned long long begin_ms = now_ms(), took_ms;
    CUresult answer = take_once(worker, block);

    took_ms = now_ms() - begin_ms;
    ORACLE_NOTE("allocate %c %zu: %d", letters[block->path], block->bytes, (int)answer);
    if (took_ms > worker->longest_ms)
        worker->longest_ms = took_ms;
    if (worker->is_waiting && took_ms > LONG_MS)
        end_wait(worker);
    return answer;
}

static void drain(struct worker *worker, struct lane *lane)
{
    if (lane->captures)
        return;
    worker->doing = "cuStreamSynchronize";
    OK(cuStreamSynchronize(lane->stream));
    worker->live_bytes -= lane->leaving_bytes;
    lane->leaving_bytes = 0;
}

/* While this thread's own kernel waits for it, no call that waits is right. */
static bool may_wait(const struct worker *worker)
{
    return !worker->is_waiting;
}

static void drain_for(struct worker *worker, enum path path, size_t bytes)
{
    for (unsigned i = 0; i < LANES && !fits(worker, path, bytes) && may_wait(worker); i++)
        if (worker->lanes[i].leaving_bytes)
            drain(worker, &worker->lanes[i]);
}

static void note_refusal(struct worker *worker, const struct block *block)
{
    worker->refusals[block->path]++;
    if (!worker->first_refusal)
        worker->first_refusal = worker->progress;
    if (getenv("PRESSURE_VERBOSE"))
        fprintf(stderr, "pressure: refused: %zu bytes by %c, thread holds %zu of %zu\n",
                block->bytes, letters[block->path], worker->live_bytes, worker->share_bytes);
}

/* What does not fit is made smaller, mostly: the share is full then. */
static void shrink(struct worker *worker, struct block *block)
{
    while (!fits(worker, block->path, block->bytes) && block->bytes > 1024 && !equal_bytes)
        block->bytes /= 2;
}

static void use(struct worker *worker, struct block *block);

static void allocate(struct worker *worker)
{
    struct block block = {.path = paths[draw(worker, path_count)], .bytes = draw_bytes(worker)};
    CUresult answer;

    block.lane = (unsigned)draw(worker, LANES);
    if (worker->ends_contexts)
        block.path = DRIVER; /* which ends with its context */
    if (worker->block_count == BLOCKS_MAX)
        return;
    if (worker->lanes[block.lane].captures && block.path == STREAM)
        return;
    if (block.path == ARRAY && block.bytes < 4096)
        block.bytes = 4096;
    drain_for(worker, block.path, block.bytes);
    if (chance(worker, 80))
        shrink(worker, &block);
    block.taken_bytes = taken_by(block.path, block.bytes);
    if (!fits(worker, block.path, block.bytes))
        return;
    worker->doing = "an allocation";
    worker->allocations[block.path]++;
    answer = take(worker, &block);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) {
        (void)cudaGetLastError();
        note_refusal(worker, &block);
        answer = take(worker, &block);
        worker->served_again += !answer;
    }
    if (answer == CUDA_ERROR_OUT_OF_MEMORY) {
        (void)cudaGetLastError();
        return;
    }
    if (answer)
        FAIL("allocation of %zu bytes by %c: %d", block.bytes, letters[block.path], (int)answer);
    count_live(worker, &block);
    worker->blocks[worker->block_count++] = block;
    use(worker, &worker->blocks[worker->block_count - 1]);
}

/* ---- uses ---- */

static size_t words_of(const struct block *block)
{
    return block->bytes / 4 < EDGE_WORDS ? block->bytes / 4 : EDGE_WORDS;
}

static unsigned *end_of(const struct block *block)
{
    return (unsigned *)block->at + block->bytes / 4 - words_of(block);
}

static void use(struct worker *worker, struct block *block)
{
    struct lane *lane = &worker->lanes[block->lane];
    size_t words = words_of(block);

    if (block->path == ARRAY || !words)
        return;
    worker->doing = "a launch";
    if (block->is_filled) {
        OK(hostcudaCheckPattern(end_of(block), words, block->value, wrong_words, lane->stream));
        if (chance(worker, 50))
            return;
    }
    block->value = (unsigned)draw(worker, UINT32_MAX);
    /* Half of the blocks are freed while this one still runs. */
    if (chance(worker, 50) && !lane->captures)
        OK(hostcudaHold32((unsigned *)block->at, words, block->value, draw(worker, 400),
                          lane->stream));
    OK(hostcudaFill32(end_of(block), words, block->value, lane->stream));
    block->is_filled = true;
}

static void use_some(struct worker *worker)
{
    if (worker->block_count)
        use(worker, &worker->blocks[draw(worker, worker->block_count)]);
}

/* ---- frees ---- */

static void free_in_order(struct worker *worker, const struct block *block)
{
    struct lane *lane = &worker->lanes[block->lane];

    OK(cuMemFreeAsync(block->at, lane->stream));
    if (block->taken_bytes < PAGE_BYTES)
        worker->small_bytes -= block->taken_bytes;
    lane->leaving_bytes += block->taken_bytes;
    if (chance(worker, 30) && may_wait(worker))
        drain(worker, lane);
}

static void give(struct worker *worker, const struct block *block)
{
    void *at = (void *)block->at;

    worker->doing = "a free";
    if (drains_first)
        drain(worker, &worker->lanes[block->lane]);
    if (block->path == STREAM) {
        free_in_order(worker, block);
        ORACLE_NOTE("free s");
        return;
    }
    if (block->path == MAPPED) /* an unmap does not wait */
        drain(worker, &worker->lanes[block->lane]);
    if (block->path != MAPPED && block->path != ARRAY)
        hostcuda_note_free(at);
    if (block->path == RUNTIME)
        OK(cudaFree(at));
    else if (block->path == DRIVER || block->path == MANAGED)
        OK(cuMemFree_v2(block->at));
    else if (block->path == MAPPED)
        map_end(block);
    else if (block->path == HOST)
        OK(cuMemFreeHost(at));
    else
        OK(cuArrayDestroy(block->array));
    ORACLE_NOTE("free %c", letters[block->path]);
    count_gone(worker, block);
}

static bool may_free(const struct worker *worker, const struct block *block)
{
    bool is_captured = worker->lanes[block->lane].captures;

    return may_wait(worker) && !(is_captured && (block->path == STREAM || block->path == MAPPED));
}

static void free_some(struct worker *worker)
{
    unsigned at;
    struct block block;

    if (!worker->block_count)
        return;
    at = (unsigned)draw(worker, worker->block_count);
    if (!may_free(worker, &worker->blocks[at]))
        return;
    block = worker->blocks[at];
    worker->blocks[at] = worker->blocks[--worker->block_count];
    give(worker, &block);
}

/* ---- kernels that wait for the host, and captures ---- */

static void begin_wait(struct worker *worker)
{
    struct lane *lane = &worker->lanes[draw(worker, LANES)];

    if (worker->is_waiting || lane->captures || flags_left-- <= 0)
        return;
    /* What was freed just before is what the allocations to come may need. */
    for (unsigned i = worker->block_count / 2; i > 0; i--)
        free_some(worker);
    worker->doing = "a launch of a kernel that waits";
    __atomic_store_n(&flags[worker->flag], 0, __ATOMIC_SEQ_CST);
    OK(hostcudaSpinUntil(&flags[worker->flag], lane->stream));
    worker->is_waiting = true;
}

static void end_wait(struct worker *worker)
{
    __atomic_store_n(&flags[worker->flag], 1, __ATOMIC_SEQ_CST);
    worker->is_waiting = false;
    /* before the flag may go down again */
    for (unsigned i = 0; i < LANES; i++)
        drain(worker, &worker->lanes[i]);
}

static void end_capture(struct worker *worker)
{
    for (unsigned i = 0; i < LANES; i++) {
        CUgraph graph = NULL;
        if (!worker->lanes[i].captures)
            continue;
        worker->doing = "cuStreamEndCapture";
        OK(cuStreamEndCapture(worker->lanes[i].stream, &graph));
        OK(cuGraphDestroy(graph));
        worker->lanes[i].captures = false;
        /* What was captured never ran: the blocks' patterns are not what the host thinks. */
        for (unsigned j = 0; j < worker->block_count; j++)
            if (worker->blocks[j].lane == i)
                worker->blocks[j].is_filled = false;
    }
    worker->capture_steps = 0;
}

static void begin_capture(struct worker *worker)
{
    struct lane *lane = &worker->lanes[draw(worker, LANES)];

    if (worker->capture_steps || worker->is_waiting)
        return;
    if (drains_first) /* a free cannot drain it until the capture has ended */
        drain(worker, lane);
    worker->doing = "cuStreamBeginCapture";
    OK(cuStreamBeginCapture_v2(lane->stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    lane->captures = true;
    worker->capture_steps = 1 + (unsigned)draw(worker, 40);
}

/* ---- contexts that come and go ---- */

static void open_lanes(struct worker *worker);

static CUresult make_context(struct worker *worker)
{
    CUresult answer;

    worker->doing = "cuCtxCreate";
    worker->allocations[CONTEXT]++;
    answer = cuCtxCreate_v2(&worker->context, 0, 0);
    if (answer != CUDA_ERROR_OUT_OF_MEMORY)
        return answer;
    note_refusal(worker, &(struct block){.path = CONTEXT});
    answer = cuCtxCreate_v2(&worker->context, 0, 0);
    worker->served_again += !answer;
    return answer;
}

/* The context's end frees its blocks, also those that kernels still use, which it waits for. */
static void end_context(struct worker *worker)
{
    for (unsigned i = 0; i < worker->block_count; i++) {
        hostcuda_note_free((void *)worker->blocks[i].at);
        count_gone(worker, &worker->blocks[i]);
    }
    worker->block_count = 0;
    worker->doing = "cuCtxDestroy";
    OK(cuCtxDestroy_v2(worker->context));
    OK(cuCtxSetCurrent(contexts[0]));
}

static void step_context(struct worker *worker)
{
    CUresult answer = make_context(worker);

    if (answer == CUDA_ERROR_OUT_OF_MEMORY)
        return;
    OK(answer);
    open_lanes(worker);
    for (uint64_t i = 1 + draw(worker, 12); i > 0; i--) {
        if (chance(worker, 70))
            allocate(worker);
        else
            free_some(worker);
    }
    end_context(worker);
}

static void *end_contexts(void *argument)
{
    struct worker *worker = argument;

    OK(cuCtxSetCurrent(contexts[0]));
    for (unsigned long long i = 0; i < worker->operations; i += 16) {
        step_context(worker);
        worker->progress++;
    }
    worker->is_over = true;
    return NULL;
}

/* ---- trims and commands ---- */

static bool are_all_over(void)
{
    for (unsigned i = 0; i < thread_count; i++)
        if (!workers[i].is_over)
            return false;
    return true;
}

static void *trim(void *unused)
{
    size_t (*give_back)(int device, size_t keep_bytes) = dlsym(RTLD_DEFAULT, "rmmshim_trim");

    while (give_back && !are_all_over()) {
        (void)give_back(0, 0);
        usleep(1000);
    }
    return unused;
}

/* The process may be over before it answers, so no status of the command is wrong. */
static void command(char *tool, char *verb, char *size)
{
    static char wait_word[] = "--wait=1";
    char pid[16], *words[] = {tool, verb, wait_word, pid, size, NULL};
    posix_spawn_file_actions_t quiet;
    pid_t child;

    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    OK(posix_spawn_file_actions_init(&quiet));
    OK(posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0));
    OK(posix_spawn_file_actions_adddup2(&quiet, STDOUT_FILENO, STDERR_FILENO));
    OK(posix_spawn(&child, tool, &quiet, NULL, words, (char *[]){NULL}));
    OK(waitpid(child, NULL, 0) != child);
    OK(posix_spawn_file_actions_destroy(&quiet));
}

static char *limit_text;

static void *give_commands(void *tool)
{
    static char trim_word[] = "trim", limit_word[] = "limit";

    while (!are_all_over()) {
        command(tool, trim_word, NULL);
        if (limit_text)
            command(tool, limit_word, limit_text);
    }
    return NULL;
}

/* ---- threads ---- */

static void step_rare(struct worker *worker)
{
    if (flags_left > 0 && chance(worker, 30))
        begin_wait(worker);
    else if (wants_captures && chance(worker, 50))
        begin_capture(worker);
    else if (may_wait(worker))
        drain(worker, &worker->lanes[draw(worker, LANES)]);
}

static void step(struct worker *worker)
{
    unsigned what = (unsigned)draw(worker, 100);

    if (worker->is_waiting && chance(worker, 10))
        end_wait(worker);
    if (worker->capture_steps > 1 && !--worker->capture_steps)
        worker->capture_steps = 1;
    if (worker->capture_steps == 1)
        end_capture(worker);
    if (what < 45)
        allocate(worker);
    else if (what < 80)
        free_some(worker);
    else if (what < 95)
        use_some(worker);
    else
        step_rare(worker);
}

static void open_lanes(struct worker *worker)
{
    for (unsigned i = 0; i < LANES; i++) {
        if (worker->context == contexts[2] && green)
            OK(cuGreenCtxStreamCreate(&worker->lanes[i].stream, green, CU_STREAM_NON_BLOCKING, 0));
        else
            OK(cuStreamCreate(&worker->lanes[i].stream, CU_STREAM_NON_BLOCKING));
    }
}

static void leave(struct worker *worker)
{
    end_capture(worker);
    if (worker->is_waiting)
        end_wait(worker);
    while (worker->block_count)
        give(worker, &worker->blocks[--worker->block_count]);
    for (unsigned i = 0; i < LANES; i++) {
        drain(worker, &worker->lanes[i]);
        OK(cuStreamDestroy_v2(worker->lanes[i].stream));
    }
}

static void *work(void *argument)
{
    struct worker *worker = argument;

    OK(cuCtxSetCurrent(worker->context));
    open_lanes(worker);
    for (unsigned long long i = 0; i < worker->operations; i++) {
        step(worker);
        worker->progress++;
    }
    leave(worker);
    worker->is_over = true;
    return NULL;
}

/* ---- whole program ---- */

static void tell_stall(const struct worker *worker)
{
    fprintf(stderr, "pressure: seed %llu: thread %d of %u stands still in %s, operation %llu\n",
            seed, (int)(worker - workers), thread_count, worker->doing,
            (unsigned long long)worker->progress);
}

/* A hang is a failure with a name: no thread may stand still. */
static void *watch(void *unused)
{
    unsigned long long before[THREADS_MAX] = {0};
    unsigned still_s[THREADS_MAX] = {0};

    for (;;) {
        sleep(1);
        for (unsigned i = 0; i < thread_count; i++) {
            bool moved = workers[i].progress != before[i] || workers[i].is_over;
            before[i] = workers[i].progress;
            still_s[i] = moved ? 0 : still_s[i] + 1;
            if (still_s[i] >= stall_s) {
                for (unsigned j = 0; j < thread_count; j++)
                    if (!workers[j].is_over)
                        tell_stall(&workers[j]);
                _exit(3);
            }
        }
    }
    return unused;
}

static void open_contexts(void)
{
    CUdevResource all, part;
    CUdevResourceDesc desc;
    unsigned count = 1;
    int version = 0;

    OK(cuDevicePrimaryCtxRetain(&contexts[0], 0));
    if (context_count > 1)
        OK(cuCtxCreate_v2(&contexts[1], 0, 0));
    OK(cuDriverGetVersion(&version));
    if (context_count > 2 && version < 12050)
        context_count = 2;
    if (context_count > 2) {
        OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
        OK(cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, 16));
        OK(cuDevResourceGenerateDesc(&desc, &part, 1));
        OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        OK(cuCtxFromGreenCtx(&contexts[2], green));
    }
    OK(cuCtxSetCurrent(contexts[0]));
}

/* What the device has left, but for a page per context (a sentinel and small things). */
static size_t device_room(void)
{
    size_t free_bytes, total_bytes;

    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    free_bytes = free_bytes / PAGE_BYTES * PAGE_BYTES;
    return free_bytes - (context_count + 1) * PAGE_BYTES;
}

/* A context's own memory and two pages, for each thread that makes and ends contexts. */
static size_t ending_room(void)
{
    size_t before, after, total_bytes;
    CUcontext context;

    if (!ending_count)
        return 0;
    OK(cuMemGetInfo_v2(&before, &total_bytes));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemGetInfo_v2(&after, &total_bytes));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxSetCurrent(contexts[0]));
    return ending_count * (before - after + 2 * PAGE_BYTES);
}

static void divide(size_t room, size_t host_room, unsigned percent)
{
    size_t step = equal_bytes ? round_up(equal_bytes, PAGE_BYTES) : PAGE_BYTES;
    size_t steps = room * percent / 100 / step;

    for (unsigned i = 0; i < thread_count; i++)
        workers[i].share_bytes = step * (steps / thread_count + (i < steps % thread_count));
    for (unsigned i = 0; i < thread_count; i++)
        workers[i].host_share_bytes =
            step * (host_room * percent / 100 / step / (thread_count - ending_count));
    if (!largest_bytes)
        largest_bytes = workers[thread_count - 1].share_bytes;
}

static char *word(char **arguments, const char *name)
{
    static char yes[] = "1";
    size_t length = strlen(name);

    for (; *arguments; arguments++) {
        if (strncmp(*arguments, name, length))
            continue;
        if ((*arguments)[length] == '=')
            return *arguments + length + 1;
        if (!(*arguments)[length])
            return yes;
    }
    return NULL;
}

static unsigned long long option(char **arguments, const char *name, unsigned long long missing)
{
    const char *found = word(arguments, name);

    return found ? strtoull(found, NULL, 10) : missing;
}

static void read_paths(const char *list)
{
    for (; *list; list++) {
        const char *letter = strchr(letters, *list);
        if (!letter || path_count == PATHS)
            FAIL("paths: %s", list);
        paths[path_count++] = (enum path)(letter - letters);
    }
}

static void report(void)
{
    unsigned long long allocations[PATHS] = {0}, refusals[PATHS] = {0}, again = 0, longest_ms = 0,
                       all = 0, refused = 0;

    for (unsigned i = 0; i < thread_count; i++) {
        again += workers[i].served_again;
        if (workers[i].longest_ms > longest_ms)
            longest_ms = workers[i].longest_ms;
        for (unsigned j = 0; j < PATHS; j++) {
            allocations[j] += workers[i].allocations[j];
            refusals[j] += workers[i].refusals[j];
            all += workers[i].allocations[j];
            refused += workers[i].refusals[j];
        }
    }
    printf(
        "pressure: seed=%llu threads=%u allocations=%llu refused=%llu again=%llu longest_ms=%llu",
        seed, thread_count, all, refused, again, longest_ms);
    for (unsigned j = 0; j < PATHS; j++)
        if (allocations[j])
            printf(" %c=%llu/%llu", letters[j], refusals[j], allocations[j]);
    printf("\n");
    fflush(stdout); /* reports end the process before its buffers go out */
}

int main(int argc, char **argv)
{
    struct worker dice;
    unsigned long long operations;
    const char *list;
    char *tool;
    pthread_t watcher, trimmer, commander;

    if (argc < 3) {
        fprintf(stderr, "usage: pressure SEED OPERATIONS [option...]\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    operations = strtoull(argv[2], NULL, 10);
    dice = (struct worker){.random = (seed + 1) * 0x9e3779b97f4a7c15};
    thread_count = (unsigned)option(argv + 3, "threads", 2 + draw(&dice, 5));
    if (!thread_count || thread_count > THREADS_MAX)
        FAIL("threads");
    equal_bytes = option(argv + 3, "equal", 0);
    largest_bytes = option(argv + 3, "largest", 0);
    wants_powers = option(argv + 3, "powers", 0);
    counts_pages = option(argv + 3, "pages", 0);
    drains_first = option(argv + 3, "idle", 0);
    flags_left = (int)option(argv + 3, "flags", 0);
    wants_captures = option(argv + 3, "captures", 0);
    context_count = (unsigned)option(argv + 3, "contexts", 1);
    ending_count = (unsigned)option(argv + 3, "ends", 0);
    limit_text = word(argv + 3, "limit");
    thread_count += ending_count;
    if (thread_count > THREADS_MAX)
        FAIL("ends");
    stall_s = (unsigned)option(argv + 3, "stall", 200);
    list = word(argv + 3, "paths");
    tool = word(argv + 3, "commands");
    read_paths(list ? list : "rd");
    OK(cuInit(0));
    open_contexts();
    OK(cudaHostAlloc((void **)&wrong_words, 4, cudaHostAllocPortable));
    OK(cudaHostAlloc((void **)&flags, FLAG_WORDS * 4, cudaHostAllocPortable));
    *wrong_words = 0;
    divide(option(argv + 3, "room", 0) ? option(argv + 3, "room", 0)
                                       : device_room() - ending_room(),
           option(argv + 3, "host", 64 << 20), (unsigned)option(argv + 3, "percent", 80));
    for (unsigned i = 0; i < thread_count; i++) {
        workers[i].random = draw(&dice, UINT64_MAX) | 1;
        workers[i].operations = operations / thread_count;
        workers[i].context = contexts[draw(&dice, context_count)];
        workers[i].flag = i;
        workers[i].ends_contexts = i >= thread_count - ending_count;
    }
    OK(pthread_create(&watcher, NULL, watch, NULL));
    for (unsigned i = 0; i < thread_count; i++)
        OK(pthread_create(&workers[i].thread, NULL, workers[i].ends_contexts ? end_contexts : work,
                          &workers[i]));
    if (option(argv + 3, "trims", 0))
        OK(pthread_create(&trimmer, NULL, trim, NULL));
    if (tool)
        OK(pthread_create(&commander, NULL, give_commands, tool));
    for (unsigned i = 0; i < thread_count; i++)
        OK(pthread_join(workers[i].thread, NULL));
    if (option(argv + 3, "trims", 0))
        OK(pthread_join(trimmer, NULL));
    if (tool)
        OK(pthread_join(commander, NULL));
    if (*wrong_words)
        FAIL("%u words were overwritten", *wrong_words);
    report();
    if (hostcuda_race_count())
        fprintf(stderr, "pressure: seed %llu: %llu races\n", seed, hostcuda_race_count());
    return 0;
}
