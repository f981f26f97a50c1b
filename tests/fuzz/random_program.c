/* SPDX-License-Identifier: Apache-2.0 */
/* A random CUDA program that is right: every use of a block is ordered after the one before, by
 * streams, events or the host, and it frees as programs do that rely on cudaFree, while kernels
 * still work on the block.  So with HOSTCUDA_RACE=1 any report is a mistake of whoever handed the
 * memory out.  Each block carries a pattern of its own, which kernels check.
 *
 * random_program SEED OPERATIONS [option...]
 *   threads=N      instead of a random number up to 16
 *   live=MIB       how much one thread holds at most
 *   largest=BYTES  of a block
 *   served         allocations and frees in captures go to a library that serves them
 *   flags          kernels that wait for the host, which allocates first
 *   devicebound    only plain device memory
 *   unranged       the driver knows nothing of the blocks' ranges
 *   torch          some blocks are rmmshim_torch_alloc's, most of them freed in a stream's order
 *   async=N        of 100 blocks, more of cudaMallocAsync's than a few
 *   managed=N      of 100 blocks, managed memory; with `served` a library serves that too
 *   advised        managed blocks are advised, which no other block may show
 *   fences         at the end, with no capture left, the library must still record its fences
 */
#include "random/program.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

unsigned long long seed;
struct context contexts[WHERES];
struct gate sync_gates[MEMORIES];
struct gate global_gate;

struct mail mail = {.mutex = PTHREAD_MUTEX_INITIALIZER};

unsigned *wrong_words;
size_t live_max, largest = (size_t)24 << 20;
unsigned async_percent, managed_percent;
bool served, is_advised, wants_flags, device_only, has_greens, has_green_streams, one_thread,
    is_unranged;
void *(*torch_alloc)(ssize_t size, int device, cudaStream_t stream);
void (*torch_free)(void *block, ssize_t size, int device, cudaStream_t stream);
_Atomic unsigned long long out_of_memories, captures_done, frees_done;

static void free_wrongly(struct worker *worker)
{
    struct block block;
    int on_stack, answer;

    if (chance(worker, 30)) {
        UNSAFE(worker, answer = (int)cuMemFree_v2((CUdeviceptr)&on_stack));
    } else if (worker->block_count) {
        unsigned index = (unsigned)draw(worker, worker->block_count);
        block = worker->blocks[index];
        if (block.bytes < 1024 || block.kind == PINNED)
            return;
        if (one_thread && block.kind == DRIVER) { /* nobody else can be given it in between */
            block = take_out(worker, index);
            free_block(worker, &block);
            UNSAFE(worker, answer = (int)cuMemFree_v2((CUdeviceptr)block.at));
        } else {
            UNSAFE(worker, answer = (int)cuMemFree_v2((CUdeviceptr)block.at + 512));
        }
    } else {
        return;
    }
    ORACLE_NOTE("free wrongly: %d", answer);
    if (answer != CUDA_ERROR_INVALID_VALUE)
        FAIL("a wrong free: %d", answer);
}

static void ask(struct worker *worker)
{
    size_t free_bytes, total_bytes, bytes;
    CUdeviceptr base;
    const struct block *block;

    OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    if (free_bytes > total_bytes)
        FAIL("%zu bytes of %zu are free", free_bytes, total_bytes);
    if (!worker->block_count)
        return;
    block = &worker->blocks[draw(worker, worker->block_count)];
    if (block->kind != DRIVER || is_unranged)
        return;
    OK(cuMemGetAddressRange_v2(&base, &bytes, (CUdeviceptr)block->at + block->bytes / 2));
    if (base != (CUdeviceptr)block->at || bytes != block->bytes)
        FAIL("address range of %zu bytes instead of %zu", bytes, block->bytes);
}

/* A kernel that ends when the host, after its next allocation, says so. */
static void wait_for_host(struct worker *worker)
{
    struct lane *lane = some_lane(worker);
    void *flag_memory, *more;
    _Atomic unsigned *flag;

    if (!wants_flags || lane->kind != NON_BLOCKING || worker->capture.origin ||
        !lane_enter(worker, lane))
        return;
    UNSAFE(worker, OK(cudaHostAlloc(&flag_memory, 4, 0)));
    flag = flag_memory;
    *flag = 0;
    OK(hostcudaSpinUntil(flag_memory, lane->stream));
    UNSAFE(worker, OK(cudaMalloc(&more, 1 + draw(worker, 4 << 20))));
    *flag = 1;
    UNSAFE(worker, OK(cudaFree(more)));
    UNSAFE(worker, OK(cudaFreeHost(flag_memory)));
    lane_leave(worker, lane);
}

static void step(struct worker *worker)
{
    unsigned what = (unsigned)draw(worker, 1000);

    if (worker->capture.origin) {
        if (worker->capture.steps-- == 0) {
            finish_capture(worker);
            return;
        }
        if (what % 4 == 0) {
            if (chance(worker, 20))
                fork_capture(worker);
            else if (chance(worker, 10))
                end_wrongly(worker);
            else
                capture_node(worker);
            return;
        }
    }
    if (what < 300)
        allocate(worker);
    else if (what < 580)
        use(worker);
    else if (what < 850)
        free_one(worker);
    else if (what < 870)
        synchronise(worker);
    else if (what < 890)
        create_lane(worker);
    else if (what < 900)
        destroy_lane(worker);
    else if (what < 930)
        post(worker);
    else if (what < 960)
        fetch(worker);
    else if (what < 970)
        begin_capture(worker);
    else if (what < 985)
        launch_graph(worker);
    else if (what < 990)
        free_wrongly(worker);
    else if (what < 999)
        ask(worker);
    else
        wait_for_host(worker);
}

/* What is left over is freed, or outlives the thread. */
static void leave(struct worker *worker)
{
    if (worker->capture.origin)
        finish_capture(worker);
    for (unsigned i = 0; i < GRAPHS_MAX; i++) {
        struct graph *graph = &worker->graphs[i];
        if (!graph->exec)
            continue;
        OK(cudaGraphExecDestroy(graph->exec));
        put_graph_blocks_back(worker, graph);
    }
    for (unsigned rounds = 0; worker->block_count && rounds < BLOCKS_MAX; rounds++) {
        if (chance(worker, 50)) {
            post(worker);
        } else {
            struct block block = take_out(worker, 0);
            free_block(worker, &block);
        }
    }
    while (worker->block_count) {
        struct block block = take_out(worker, 0);
        free_block(worker, &block);
    }
    for (unsigned i = 2; i < LANES_MAX; i++)
        if (worker->lanes[i].kind != NO_LANE)
            OK(cudaStreamDestroy(worker->lanes[i].stream));
    OK(cudaEventDestroy(worker->order_event));
    OK(cudaEventDestroy(worker->fork_event));
    OK(cudaEventDestroy(worker->join_event));
}

static void *work(void *argument)
{
    struct worker *worker = argument;

    OK(cuCtxSetCurrent(worker->context->handle));
    worker->lanes[0] = (struct lane){.kind = LEGACY};
    worker->lanes[1] = (struct lane){.kind = OWN, .stream = cudaStreamPerThread};
    OK(cudaEventCreateWithFlags(&worker->order_event, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&worker->fork_event, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&worker->join_event, cudaEventDisableTiming));
    for (unsigned i = 0; i < 3; i++)
        create_lane(worker);
    for (unsigned long long i = 0; i < worker->operations; i++)
        step(worker);
    leave(worker);
    return NULL;
}

static void open_contexts(void)
{
    CUdevResource all, part;
    CUdevResourceDesc desc;
    unsigned count = 1;
    int version = 0;

    OK(cuDevicePrimaryCtxRetain(&contexts[PRIMARY].handle, 0));
    OK(cuCtxCreate_v2(&contexts[SECOND].handle, 0, 0));
    contexts[SECOND].memory = SECOND_MEMORY;
    OK(cuDriverGetVersion(&version));
    has_greens = version >= 12040;
    has_green_streams = version >= 12050;
    if (has_greens) {
        OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
        OK(cuDevSmResourceSplitByCount(&part, &count, &all, NULL, 0, 16));
        OK(cuDevResourceGenerateDesc(&desc, &part, 1));
        OK(cuGreenCtxCreate(&contexts[GREEN].green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        OK(cuCtxFromGreenCtx(&contexts[GREEN].handle, contexts[GREEN].green));
    }
    OK(cuCtxSetCurrent(contexts[PRIMARY].handle));
}

static void free_mail(enum memory memory)
{
    unsigned kept = 0;

    OK(cuCtxSetCurrent(contexts[memory == SECOND_MEMORY ? SECOND : PRIMARY].handle));
    for (unsigned i = 0; i < mail.count; i++) {
        struct block *block = &mail.blocks[i];
        if (block->memory != memory) {
            mail.blocks[kept++] = *block;
            continue;
        }
        if (block->kind == ASYNC && block->event)
            OK(cudaStreamWaitEvent(NULL, block->event, 0));
        drop_event(block);
        if (block->kind == ASYNC) {
            OK(cudaMemsetAsync(block->at, 0, 1, NULL));
            OK(cudaFreeAsync(block->at, NULL));
            continue;
        }
        hostcuda_note_free(block->at);
        OK(block->kind == PINNED ? cudaFreeHost(block->at) : cudaFree(block->at));
    }
    mail.count = kept;
    OK(cuCtxSetCurrent(contexts[PRIMARY].handle));
}

/* Without threads: their work may still run. */
static void close_context(enum where where)
{
    struct context *context = &contexts[where];

    if (!context->handle)
        return;
    if (where == SECOND)
        free_mail(SECOND_MEMORY);
    if (context->green)
        OK(cuGreenCtxDestroy(context->green));
    else if (where == SECOND)
        OK(cuCtxDestroy_v2(context->handle));
    context->handle = NULL;
    context->green = NULL;
}

/* A gate that stays shut after the last capture is safe, but nothing is reused any more. */
static void expect_fences(void)
{
    unsigned long long before = hostcuda_call_count("cuCtxRecordEvent");
    void *blocks[300];

    for (unsigned i = 0; i < 300; i++)
        OK(cudaMalloc(&blocks[i], 1000));
    for (unsigned i = 0; i < 300; i++)
        OK(cudaFree(blocks[i]));
    ORACLE_NOTE("fences");
    if (hostcuda_call_count("cuCtxRecordEvent") == before)
        FAIL("no fence is recorded any more");
}

static _Atomic bool is_over;

/* With HOSTCUDA_SCHEDULE=stepped nothing else moves the device while the host polls. */
static void *step_device(void *unused)
{
    struct worker stepper = {.random = seed * 77 + 5};

    while (!is_over) {
        for (unsigned i = (unsigned)draw(&stepper, 32); i > 0 && hostcuda_step(NULL); i--)
            ;
        usleep((unsigned)draw(&stepper, 200));
    }
    return unused;
}

static void run_round(unsigned threads, unsigned long long operations, struct worker *dice)
{
    static struct worker workers[THREADS_MAX];

    for (unsigned i = 0; i < threads; i++) {
        unsigned where = (unsigned)draw(dice, 100);
        workers[i] = (struct worker){.random = draw(dice, UINT64_MAX) | 1,
                                     .operations = operations / threads};
        workers[i].context = &contexts[where < 60                  ? PRIMARY
                                       : where < 80 || !has_greens ? SECOND
                                                                   : GREEN];
        OK(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
    }
    for (unsigned i = 0; i < threads; i++)
        OK(pthread_join(workers[i].thread, NULL));
}

/* Without the library there are none. */
static void find_torch(void)
{
    void *found[] = {dlsym(RTLD_DEFAULT, "rmmshim_torch_alloc"),
                     dlsym(RTLD_DEFAULT, "rmmshim_torch_free")};

    memcpy(&torch_alloc, &found[0], sizeof(found[0]));
    memcpy(&torch_free, &found[1], sizeof(found[1]));
}

static unsigned long long option(char **arguments, const char *name, unsigned long long missing)
{
    size_t length = strlen(name);

    for (; *arguments; arguments++) {
        if (strncmp(*arguments, name, length))
            continue;
        if ((*arguments)[length] == '=')
            return strtoull(*arguments + length + 1, NULL, 10);
        if (!(*arguments)[length])
            return 1;
    }
    return missing;
}

int main(int argc, char **argv)
{
    struct worker dice;
    unsigned threads, rounds;
    unsigned long long operations;
    const char *schedule = getenv("HOSTCUDA_SCHEDULE");
    pthread_t stepper;
    bool is_stepped = schedule && !strcmp(schedule, "stepped") && !ORACLE_LISTENS;

    if (argc < 3) {
        fprintf(stderr, "usage: random_program SEED OPERATIONS [option...]\n");
        return 2;
    }
    seed = strtoull(argv[1], NULL, 10);
    operations = strtoull(argv[2], NULL, 10);
    dice = (struct worker){.random = (seed + 1) * 0x9e3779b97f4a7c15};
    threads = 1 + (unsigned)(chance(&dice, 50) ? draw(&dice, 4) : draw(&dice, THREADS_MAX));
    threads = (unsigned)option(argv + 3, "threads", threads);
    rounds = 1 + (unsigned)draw(&dice, 3);
    live_max = ((size_t)1 << 20) * option(argv + 3, "live", 64);
    largest = option(argv + 3, "largest", largest);
    served = option(argv + 3, "served", 0);
    wants_flags = option(argv + 3, "flags", 0);
    device_only = option(argv + 3, "devicebound", 0);
    is_unranged = option(argv + 3, "unranged", 0);
    async_percent = (unsigned)option(argv + 3, "async", 0);
    managed_percent = (unsigned)option(argv + 3, "managed", 0);
    is_advised = option(argv + 3, "advised", 0);
    one_thread = threads == 1;
    if (option(argv + 3, "torch", 0))
        find_torch();
    OK(cuInit(0));
    for (unsigned i = 0; i < WHERES; i++)
        pthread_mutex_init(&contexts[i].null_gate.mutex, NULL);
    for (unsigned i = 0; i < MEMORIES; i++)
        pthread_mutex_init(&sync_gates[i].mutex, NULL);
    pthread_mutex_init(&global_gate.mutex, NULL);
    if (is_stepped)
        OK(pthread_create(&stepper, NULL, step_device, NULL));
    open_contexts();
    OK(cudaHostAlloc((void **)&wrong_words, 4, cudaHostAllocPortable));
    *wrong_words = 0;
    for (unsigned i = 0; i < rounds; i++) {
        run_round(threads, operations / rounds, &dice);
        if (i + 1 < rounds && chance(&dice, 60)) {
            close_context(GREEN);
            close_context(SECOND);
            open_contexts();
        }
    }
    free_mail(PRIMARY_MEMORY);
    free_mail(SECOND_MEMORY);
    OK(cuCtxSetCurrent(contexts[SECOND].handle));
    OK(cudaDeviceSynchronize());
    OK(cuCtxSetCurrent(contexts[PRIMARY].handle));
    OK(cudaDeviceSynchronize());
    if (*wrong_words)
        FAIL("%u words were overwritten", *wrong_words);
    OK(cudaFreeHost(wrong_words));
    if (option(argv + 3, "fences", 0))
        expect_fences();
    close_context(GREEN);
    close_context(SECOND);
    is_over = true;
    if (is_stepped)
        OK(pthread_join(stepper, NULL));
    if (hostcuda_race_count())
        fprintf(stderr, "random_program: seed %llu: %llu races\n", seed, hostcuda_race_count());
    if (getenv("RANDOM_PROGRAM_VERBOSE"))
        fprintf(stderr,
                "seed %llu: %u threads, %u rounds, %llu frees, %llu captures, %llu times out of "
                "memory\n",
                seed, threads, rounds, (unsigned long long)frees_done,
                (unsigned long long)captures_done, (unsigned long long)out_of_memories);
    return 0;
}
