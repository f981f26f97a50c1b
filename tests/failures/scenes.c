/* SPDX-License-Identifier: Apache-2.0 */
/* A program that goes on when calls fail.  run-failures makes each call fail and judges what it
 * prints.
 *
 * scenes NAME
 * scenes served            holds memory until its stdin ends, so that the command can look at it
 *
 * A scene is played once with the failures and, after failing_pause(1), once more, when everything
 * must succeed.  Then all memory is freed and given back, and its amounts are printed.  What ends
 * the process is again with the failures.
 *
 *   refused CALL CODE        a call failed, with the failures on
 *   wrong WHAT               data are not what they were, or a call failed that must not
 *   state NAME NUMBER ...    what is left when all is freed
 *   ok                       the last line */
#include "../../include/rmmshim/rmmshim.h"
#include "../hostcuda/hostcuda.h"
#include "../samples/sample.h"
#include "failing.h"

#include <cuda.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#pragma weak failing_pause
#pragma weak rmmshim_get_statistics_of
#pragma weak rmmshim_trim
#pragma weak rmmshim_report
#pragma weak rmmshim_mark
#pragma weak rmmshim_push_phase
#pragma weak rmmshim_pop_phase
#pragma weak rmmshim_push_resource
#pragma weak rmmshim_pop_resource
#pragma weak rmmshim_set_limit
#pragma weak rmmshim_prefetch

/* cuda.h maps the plain name to another version with every release; this one is in all drivers. */
extern CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device);

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

enum { KEPT_MOST = 256, KINDS = 3 };

static bool is_quiet; /* failures are off, so that every call must succeed */
static CUcontext context;
static CUstream stream;

static void pause_failures(bool pause)
{
    is_quiet = pause;
    if (failing_pause)
        failing_pause(pause);
}

static bool good(const char *call, int result)
{
    if (result)
        printf("%s %s %d\n", is_quiet ? "wrong" : "refused", call, result);
    return result == 0;
}

#define GOOD(call) good(#call, (int)(call))

/* What must come to pass: once more when it fails, then without failures. */
#define STEP(call)                                                                                 \
    do {                                                                                           \
        bool was_quiet_ = is_quiet;                                                                \
        if (!GOOD(call) && !GOOD(call)) {                                                          \
            pause_failures(true);                                                                  \
            if (!GOOD(call))                                                                       \
                exit(1);                                                                           \
            pause_failures(was_quiet_);                                                            \
        }                                                                                          \
    } while (0)

/* ---- blocks ---- */

enum way { DEVICE, PITCHED, MANAGED, HOST, ORDERED };

struct block {
    enum way way;
    CUdeviceptr at;
    size_t size_bytes;
};

static struct block kept[KEPT_MOST]; /* whose free has failed */
static unsigned kept_count;

static CUresult allocate(struct block *block, enum way way, size_t size_bytes)
{
    size_t pitch;
    void *host = NULL;
    CUresult result;

    *block = (struct block){way, 0, size_bytes};
    switch (way) {
    case DEVICE:
        return HOSTCUDA_REQUEST(cuMemAlloc(&block->at, size_bytes));
    case PITCHED:
        return HOSTCUDA_REQUEST(cuMemAllocPitch(&block->at, &pitch, size_bytes / 4, 4, 4));
    case MANAGED:
        return HOSTCUDA_REQUEST(cuMemAllocManaged(&block->at, size_bytes, CU_MEM_ATTACH_GLOBAL));
    case HOST:
        result = HOSTCUDA_REQUEST(cuMemHostAlloc(&host, size_bytes, 0));
        block->at = (CUdeviceptr)(uintptr_t)host;
        return result;
    case ORDERED:
        return HOSTCUDA_REQUEST(cuMemAllocAsync(&block->at, size_bytes, stream));
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult release(const struct block *block)
{
    if (block->way == HOST)
        return cuMemFreeHost((void *)(uintptr_t)block->at); /* NOLINT(performance-no-int-to-ptr) */
    if (block->way == ORDERED)
        return cuMemFreeAsync(block->at, stream);
    return cuMemFree(block->at);
}

static void allocate_and_fill(struct block *block, enum way way, size_t size_bytes, unsigned value)
{
    static const char *const names[] = {"allocate_device", "allocate_pitched", "allocate_managed",
                                        "allocate_host", "allocate_ordered"};

    if (!good(names[way], allocate(block, way, size_bytes))) {
        block->at = 0;
        return;
    }
    STEP(cuMemsetD32Async(block->at, value, 64, stream));
    STEP(cuMemsetD32Async(block->at + size_bytes / 4 * 4 - 4, value, 1, stream));
}

static void check_words(const struct block *block, unsigned value)
{
    unsigned words[2] = {0, 0};

    if (!block->at)
        return;
    STEP(cuStreamSynchronize(stream));
    STEP(cuMemcpyDtoH(&words[0], block->at, 4));
    STEP(cuMemcpyDtoH(&words[1], block->at + block->size_bytes / 4 * 4 - 4, 4));
    if (words[0] != value || words[1] != value)
        printf("wrong data\n");
}

static void free_block(struct block *block)
{
    if (block->at && !good("free", release(block))) {
        CHECK(kept_count < KEPT_MOST);
        kept[kept_count++] = *block;
    }
    block->at = 0;
}

/* Some of each size, in an order in which pieces become free between others. */
static void blocks(enum way way, const size_t *sizes, unsigned count)
{
    struct block all[16];

    CHECK(count <= 16);
    for (unsigned i = 0; i < count; i++)
        allocate_and_fill(&all[i], way, sizes[i], i + 1);
    for (unsigned i = 0; i < count; i++)
        check_words(&all[i], i + 1);
    for (unsigned i = 0; i < count; i += 2)
        free_block(&all[i]);
    for (unsigned i = 0; i < count; i += 2)
        allocate_and_fill(&all[i], way, sizes[count - 1 - i], i + 100);
    for (unsigned i = 0; i < count; i += 2)
        check_words(&all[i], i + 100);
    for (unsigned i = 0; i < count; i++)
        free_block(&all[i]);
}

static const size_t mixed[] = {256, 4 * KIB + 4, MIB, 3 * MIB + 512, 33 * MIB, 512, 8 * MIB};
#define MIXED mixed, sizeof(mixed) / sizeof(mixed[0])

/* ---- scenes ---- */

static void device(void)
{
    blocks(DEVICE, MIXED);
    blocks(PITCHED, mixed, 4);
}

/* For stacks that look at each byte. */
static void small(void)
{
    blocks(DEVICE, mixed, 3);
}

static void managed(void)
{
    blocks(MANAGED, MIXED);
}

static void host(void)
{
    blocks(HOST, MIXED);
}

static void ordered(void)
{
    blocks(ORDERED, MIXED);
}

static void all_kinds(void)
{
    blocks(DEVICE, mixed, 5);
    blocks(MANAGED, mixed, 3);
    blocks(HOST, mixed, 3);
    blocks(ORDERED, mixed, 3);
}

/* Under a limit of 64 MiB. */
static void limit(void)
{
    struct block first, second;
    CUresult result;

    blocks(DEVICE, mixed, 4);
    allocate_and_fill(&first, DEVICE, 40 * MIB, 7);
    result = allocate(&second, DEVICE, 40 * MIB);
    if (result != CUDA_ERROR_OUT_OF_MEMORY && !(first.at == 0 && result == CUDA_SUCCESS))
        good("above_the_limit", result == CUDA_SUCCESS ? -1 : (int)result);
    if (result == CUDA_SUCCESS)
        free_block(&second);
    check_words(&first, 7);
    free_block(&first);
}

/* A context that ends with memory in it. */
static void ending(void)
{
    CUcontext other, popped;
    CUdeviceptr block;
    CUstream other_stream, own = stream;
    unsigned before;

    blocks(DEVICE, mixed, 3);
    before = kept_count;
    STEP(cuCtxCreate_v2(&other, 0, 0));
    STEP(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
    stream = other_stream;
    blocks(DEVICE, mixed, 3);
    blocks(HOST, mixed, 3);
    stream = own;
    for (int i = 0; i < 3; i++)
        good("allocate_device", cuMemAlloc(&block, MIB));
    STEP(cuCtxPopCurrent(&popped));
    STEP(cuCtxDestroy(other));
    kept_count = before; /* the others have ended with the context */
}

static void reset(void)
{
    CUdeviceptr block;

    blocks(DEVICE, mixed, 3);
    good("allocate_device", cuMemAlloc(&block, MIB));
    kept_count = 0; /* they end with the context */
    STEP(cuDevicePrimaryCtxReset(0));
    STEP(cuDevicePrimaryCtxRetain(&context, 0));
    STEP(cuCtxSetCurrent(context));
    STEP(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    blocks(DEVICE, mixed, 3);
}

static void await(pid_t child)
{
    int status = 0;

    CHECK(child > 0);
    while (waitpid(child, &status, 0) < 0)
        ;
    if (status)
        printf("wrong child %d\n", status);
}

/* CUDA cannot be used in the child, which ends as programs end. */
static void forks(void)
{
    struct block block;
    pid_t child;

    allocate_and_fill(&block, DEVICE, MIB, 5);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        CUdeviceptr other;
        bool was_served = cuMemAlloc(&other, MIB) == CUDA_SUCCESS;
        exit(was_served ? 1 : 0);
    }
    await(child);
    check_words(&block, 5);
    free_block(&block);
    blocks(DEVICE, mixed, 3);
}

static void say_answer(const char *call, int result)
{
    if (result < 0 && is_quiet)
        printf("wrong %s %d\n", call, result);
}

/* What the program asks of the library. */
static void control(void)
{
    struct block block;

    if (!rmmshim_report)
        return;
    say_answer("push_phase", rmmshim_push_phase("phase"));
    blocks(DEVICE, mixed, 3);
    (void)rmmshim_mark("mark"); /* there may be no log */
    say_answer("set_limit", rmmshim_set_limit(0, 256 * MIB));
    if (rmmshim_push_resource("pool(cuda, maximum_size=64MiB)") == 0) {
        blocks(DEVICE, mixed, 3);
        say_answer("pop_resource", rmmshim_pop_resource());
    } else {
        say_answer("push_resource", -1);
    }
    allocate_and_fill(&block, DEVICE, 5 * MIB, 3);
    say_answer("report", rmmshim_report(getenv("REPORT")));
    check_words(&block, 3);
    free_block(&block);
    say_answer("pop_phase", rmmshim_pop_phase());
}

/* ---- memory of another process ---- */

static unsigned files(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned count = 0;

    CHECK(folder);
    while (readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* The failures end here and in the exporter, by the socket to it. */
static void end_failures(int exporter)
{
    char answer = 0;

    pause_failures(true);
    CHECK(write(exporter, &answer, 1) == 1 && read(exporter, &answer, 1) == 1);
}

/* Reads the word after the block, then closes it.  What the driver refuses to close is closed all
 * the same, and the driver has it still. */
static void use_opened(struct block *block)
{
    check_words(block, 9);
    (void)GOOD(cuIpcCloseMemHandle(block->at));
}

static int importer(int exporter)
{
    CUipcMemHandle handle;
    struct block block = {DEVICE, 0, MIB};
    bool was_quiet = is_quiet;

    if (read(exporter, &handle, sizeof(handle)) != (ssize_t)sizeof(handle))
        return 0; /* it was not exported */
    for (int i = 0; i < 2 && !block.at; i++)
        if (!good("open_handle", cuIpcOpenMemHandle(&block.at, handle, 1)))
            block.at = 0;
    if (block.at)
        use_opened(&block);
    end_failures(exporter);
    if (!good("open_handle", cuIpcOpenMemHandle(&block.at, handle, 1)))
        return 1;
    use_opened(&block);
    if (!was_quiet) {
        printf("state importer_allocations %u\n", hostcuda_live_allocations());
        printf("state importer_files %u\n", files());
    }
    return 0;
}

/* Ends the failures when the importer asks for that. */
static void answer_importer(int importer)
{
    char question;

    while (read(importer, &question, 1) == 1) {
        pause_failures(true);
        CHECK(write(importer, &question, 1) == 1);
    }
}

static void ipc(void)
{
    int ends[2];
    pid_t child;
    struct block block;
    CUipcMemHandle handle;
    char end[16];
    bool was_quiet = is_quiet;

    allocate_and_fill(&block, DEVICE, MIB, 9);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    STEP(cuStreamSynchronize(stream));
    fflush(stdout);
    child = fork();
    if (child == 0) {
        close(ends[1]);
        snprintf(end, sizeof(end), "%d", ends[0]);
        setenv("QUIET", is_quiet ? "1" : "0", 1);
        execl("/proc/self/exe", "scenes", "importer", end, (char *)NULL);
        _exit(1);
    }
    close(ends[0]);
    if (block.at && good("get_handle", cuIpcGetMemHandle(&handle, block.at)))
        CHECK(write(ends[1], &handle, sizeof(handle)) == (ssize_t)sizeof(handle));
    else
        shutdown(ends[1], SHUT_WR);
    answer_importer(ends[1]);
    close(ends[1]);
    await(child);
    pause_failures(was_quiet);
    check_words(&block, 9);
    free_block(&block);
}

static const struct scene {
    const char *name;
    void (*play)(void);
} scenes[] = {{"device", device},   {"small", small},   {"managed", managed}, {"host", host},
              {"ordered", ordered}, {"all", all_kinds}, {"limit", limit},     {"ending", ending},
              {"reset", reset},     {"forks", forks},   {"ipc", ipc},         {"control", control}};

/* ---- what is left ---- */

/* How many workers the device has depends on what is ready at the same time. */
static unsigned threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;
    unsigned count = 0;

    CHECK(folder);
    while ((entry = readdir(folder)) != NULL) {
        char path[64], name[32] = "";
        FILE *file;
        snprintf(path, sizeof(path), "/proc/self/task/%.16s/comm", entry->d_name);
        file = fopen(path, "re");
        if (file && fgets(name, sizeof(name), file))
            count += strcmp(name, "hostcuda\n") != 0;
        if (file)
            fclose(file);
    }
    closedir(folder);
    return count;
}

static void print_state(void)
{
    STEP(cuCtxSynchronize());
    if (rmmshim_trim)
        rmmshim_trim(0, 0);
    for (int kind = 0; kind < KINDS && rmmshim_get_statistics_of; kind++) {
        struct rmmshim_statistics now = {.size = sizeof(now)};
        if (rmmshim_get_statistics_of(0, kind, &now) != 0)
            printf("wrong statistics\n");
        printf("state used_%d %llu\nstate blocks_%d %llu\nstate held_%d %llu\n", kind,
               (unsigned long long)now.used_bytes, kind, (unsigned long long)now.used_blocks, kind,
               (unsigned long long)now.total_bytes);
        if (kind == 0)
            printf("state charged %llu\n", (unsigned long long)now.charged_bytes);
    }
    printf("state live_allocations %u\n", hostcuda_live_allocations());
    printf("state device_bytes %zu\n", hostcuda_used_bytes(0));
    printf("state files %u\n", files());
    printf("state threads %u\n", threads());
}

static void start(void)
{
    STEP(cuInit(0));
    STEP(cuDevicePrimaryCtxRetain(&context, 0));
    STEP(cuCtxSetCurrent(context));
    STEP(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

static void free_kept(void)
{
    for (unsigned i = 0; i < kept_count; i++)
        good("free", release(&kept[i]));
    kept_count = 0;
}

static int play(const struct scene *scene)
{
    start();
    scene->play();
    pause_failures(true);
    free_kept();
    if (!getenv("COUNT")) /* the calls of the first time are counted */
        scene->play();
    print_state();
    pause_failures(false);
    STEP(cuStreamDestroy(stream));
    STEP(cuDevicePrimaryCtxRelease(0));
    puts("ok");
    return 0;
}

static int serve(void)
{
    struct block all[3];

    start();
    for (unsigned i = 0; i < 3; i++)
        allocate_and_fill(&all[i], DEVICE, mixed[i + 1], i);
    STEP(cuStreamSynchronize(stream));
    puts("ready");
    while (getchar() != EOF)
        ;
    for (unsigned i = 0; i < 3; i++)
        free_block(&all[i]);
    return 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && !strcmp(argv[1], "served"))
        return serve();
    if (argc == 3 && !strcmp(argv[1], "importer")) {
        const char *quiet = getenv("QUIET");
        pause_failures(quiet && *quiet == '1');
        start();
        return importer((int)strtol(argv[2], NULL, 10));
    }
    for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]) && argc == 2; i++)
        if (!strcmp(argv[1], scenes[i].name))
            return play(&scenes[i]);
    return 2;
}
