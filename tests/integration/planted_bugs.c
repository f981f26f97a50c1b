/* SPDX-License-Identifier: Apache-2.0 */
/* Programs with one memory mistake each, made as kernels, captures, contexts and processes make
 * it. tests/conformance/planted_bugs.txt says which setting names which mistake.  They run on a GPU
 * too.
 *
 *   planted_bugs BUG
 *
 * As "peer" it is the other process of freed_while_a_peer_reads. */
#include "device_work.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <sys/wait.h>

enum { WORDS = 25000, BYTES = 4 * WORDS, WRITTEN = 0x77, INSIDE = 512, STEPS = 5 };

#define NOT_INLINED __attribute__((noinline))

extern char **environ;

static CUcontext context;

static void begin(void)
{
    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    gpu_work_load();
}

/* Inlined in every build, so that the first frame is the bug's own function. */
__attribute__((always_inline)) static inline CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, bytes));
    return block;
}

/* The block of the mistake: its address is printed, for the test to know. */
__attribute__((always_inline)) static inline CUdeviceptr allocate_block(void)
{
    CUdeviceptr block = allocate(BYTES);

    printf("block %#llx of %d bytes\n", (unsigned long long)block, BYTES);
    fflush(stdout);
    return block;
}

/* Freed memory is looked at when it is handed out again. */
static void have_freed_memory_looked_at(void)
{
    MUST(cuCtxSynchronize());
    MUST(cuMemFree(allocate(BYTES)));
}

static void say(float result)
{
    printf("the result is %s\n", isnan(result) ? "not a number" : "a number");
}

static NOT_INLINED void used_after_free(void)
{
    CUdeviceptr block = allocate_block();
    float result;

    MUST(cuMemFree(block));
    MUST(cuMemcpyDtoH(&result, block, sizeof(result)));
    say(result);
    fill(NULL, block + 1000, 1, WRITTEN);
    have_freed_memory_looked_at();
}

static NOT_INLINED void written_past_the_end(void)
{
    CUdeviceptr block = allocate_block();

    fill(NULL, block, WORDS + 1, WRITTEN);
    MUST(cuCtxSynchronize());
    MUST(cuMemFree(block));
    have_freed_memory_looked_at();
}

static NOT_INLINED void freed_twice(void)
{
    CUdeviceptr block = allocate_block();

    MUST(cuMemFree(block));
    CHECK(cuMemFree(block) == CUDA_ERROR_INVALID_VALUE);
}

static NOT_INLINED void freed_inside(void)
{
    CUdeviceptr block = allocate_block();

    CHECK(cuMemFree(block + INSIDE) == CUDA_ERROR_INVALID_VALUE);
    MUST(cuMemFree(block));
}

/* Then more is asked for than any GPU has. */
static NOT_INLINED void leaked_at_a_place(void)
{
    CUdeviceptr block;

    MUST(cuMemFree(allocate(BYTES)));
    for (int i = 0; i < 3; i++)
        (void)allocate(2 * BYTES);
    CHECK(cuMemAlloc(&block, (size_t)1 << 44) == CUDA_ERROR_OUT_OF_MEMORY);
}

static NOT_INLINED CUdeviceptr kept_by_each_step(void)
{
    return allocate(BYTES);
}

static void leaked_in_phases(void)
{
    int (*push)(const char *name) =
        (int (*)(const char *))dlsym(RTLD_DEFAULT, "rmmshim_push_phase");
    int (*pop)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "rmmshim_pop_phase");

    CHECK(push && pop);
    MUST(cuMemFree(allocate(BYTES))); /* a recording begins with the first allocation */
    for (int i = 0; i < STEPS; i++) {
        MUST(push("step"));
        (void)kept_by_each_step();
        MUST(cuMemFree(allocate(2 * BYTES)));
        MUST(pop());
    }
}

/* A kernel reads and writes a block that nobody has filled: no NaN becomes a number by that. */
static NOT_INLINED void read_before_written(void)
{
    CUdeviceptr block = allocate_block();
    float result;

    add_one(NULL, block, WORDS);
    MUST(cuMemcpyDtoH(&result, block + BYTES - sizeof(result), sizeof(result)));
    say(result);
    MUST(cuMemFree(block));
}

/* The graph uses the block at each launch, also at the one after its free. */
static NOT_INLINED void allocated_in_a_capture(void)
{
    CUdeviceptr block;
    CUgraphExec exec;
    CUstream stream;
    CUgraph graph;

    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    block = allocate_block();
    fill(stream, block, WORDS, WRITTEN);
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemFree(block));
    MUST(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    have_freed_memory_looked_at();
}

/* The owner does not know of it, and frees its block as well. */
static NOT_INLINED void freed_by_another_context(void)
{
    CUdeviceptr block = allocate_block();
    CUcontext other;

    MUST(cuCtxCreate_v2(&other, 0, 0));
    MUST(cuMemFree(block));
    MUST(cuCtxDestroy(other));
    MUST(cuCtxSetCurrent(context));
    CHECK(cuMemFree(block) == CUDA_ERROR_INVALID_VALUE);
}

/* ---- a free while another process reads ---- */

static void send_bytes(int to, const void *bytes, size_t count)
{
    CHECK(write(to, bytes, count) == (ssize_t)count);
}

static void receive_bytes(int from, void *bytes, size_t count)
{
    ssize_t length;

    for (char *at = bytes; count > 0; at += length, count -= (size_t)length) {
        while ((length = read(from, at, count)) < 0 && errno == EINTR)
            continue;
        CHECK(length > 0);
    }
}

/* Opens the block whose handle comes, says so, and reads it when told that it is freed. */
static void peer(void)
{
    CUdeviceptr block, counter;
    CUipcMemHandle handle;
    uint64_t others = 0;
    char word = 'o';

    receive_bytes(STDIN_FILENO, &handle, sizeof(handle));
    begin();
    MUST(cuIpcOpenMemHandle(&block, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    send_bytes(STDOUT_FILENO, &word, 1);
    receive_bytes(STDIN_FILENO, &word, 1);
    counter = allocate(sizeof(others));
    MUST(cuMemsetD8(counter, 0, sizeof(others)));
    check(NULL, block, WORDS, WRITTEN, counter);
    MUST(cuMemcpyDtoH(&others, counter, sizeof(others)));
    send_bytes(STDOUT_FILENO, &others, sizeof(others));
    MUST(cuIpcCloseMemHandle(block));
    MUST(cuMemFree(counter));
}

static pid_t start_peer(int *to, int *from)
{
    char name[] = "planted_bugs", word[] = "peer", *arguments[] = {name, word, NULL};
    posix_spawn_file_actions_t files;
    int down[2], up[2];
    pid_t process;

    CHECK(pipe(down) == 0 && pipe(up) == 0);
    CHECK(posix_spawn_file_actions_init(&files) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&files, down[0], STDIN_FILENO) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&files, up[1], STDOUT_FILENO) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(posix_spawn_file_actions_addclose(&files, down[i]) == 0 &&
              posix_spawn_file_actions_addclose(&files, up[i]) == 0);
    CHECK(posix_spawn(&process, "/proc/self/exe", &files, NULL, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&files);
    close(down[0]);
    close(up[1]);
    *to = down[1];
    *from = up[0];
    return process;
}

static NOT_INLINED void freed_while_a_peer_reads(void)
{
    CUdeviceptr block = allocate_block();
    int to, from, status;
    CUipcMemHandle handle;
    pid_t process;
    uint64_t others;
    char word = 'f';

    fill(NULL, block, WORDS, WRITTEN);
    MUST(cuCtxSynchronize());
    MUST(cuIpcGetMemHandle(&handle, block));
    process = start_peer(&to, &from);
    send_bytes(to, &handle, sizeof(handle));
    receive_bytes(from, &word, 1);
    MUST(cuMemFree(block));
    have_freed_memory_looked_at();
    send_bytes(to, &word, 1);
    receive_bytes(from, &others, sizeof(others));
    CHECK(waitpid(process, &status, 0) == process && status == 0);
    printf("the peer read %llu other words\n", (unsigned long long)others);
}

static const struct {
    const char *name;
    void (*run)(void);
} bugs[] = {
    {"used_after_free", used_after_free},
    {"written_past_the_end", written_past_the_end},
    {"freed_twice", freed_twice},
    {"freed_inside", freed_inside},
    {"leaked_at_a_place", leaked_at_a_place},
    {"leaked_in_phases", leaked_in_phases},
    {"read_before_written", read_before_written},
    {"allocated_in_a_capture", allocated_in_a_capture},
    {"freed_by_another_context", freed_by_another_context},
    {"freed_while_a_peer_reads", freed_while_a_peer_reads},
};

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    watchdog(argv[1], ENOUGH_S);
    if (strcmp(argv[1], "peer") == 0) {
        peer();
        return 0;
    }
    begin();
    for (size_t i = 0; i < sizeof(bugs) / sizeof(bugs[0]); i++) {
        if (strcmp(argv[1], bugs[i].name) != 0)
            continue;
        bugs[i].run();
        printf("%s is done\n", argv[1]);
        return 0;
    }
    return 2;
}
