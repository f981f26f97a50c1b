/* SPDX-License-Identifier: Apache-2.0 */
/* 32 processes of a job that allocate and free at random, each killed at a random moment and
 * followed by another, until DEATHS have died.  No two of them together ever have more than the
 * limit, in MiB, the argument; prints "above" where they do.
 *
 * Each has a counter of its live bytes, raised after an allocation and lowered before a free, so it
 * is never more than what the process has.  A sum of all counters that were read while none was
 * lowered is at most what they had at its end.  The counter of a dead process counts for a while,
 * as the kernel closes its device late: a look that takes longer than what then is left of the time
 * for which the job counts it says nothing. */
#include "../samples/sample.h"

#include <cuda.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    PROCESSES = 32,
    DEATHS = 96,
    KILL_EVERY_MS = 40, /* about */
    CLOSES_AFTER_MS = 1000,
    LOOK_MS = 900, /* both together are less than RS_JOB_LIMIT_SETTLE_MS */
    BLOCKS_MAX = 16,
    BLOCK_MIB_MAX = 8,
    MIB = 1 << 20,
    SHARED_FD = 200,
};

/* What all processes see. */
static struct {
    _Atomic uint64_t live_bytes[PROCESSES + DEATHS]; /* of each process that there ever was */
    _Atomic uint64_t killed_ms[PROCESSES + DEATHS];  /* just before it is; 0: it is not */
    _Atomic uint64_t lowered;                        /* how often a counter was */
    _Atomic uint64_t served, refused, most_bytes, above;
} * shared;

static uint64_t limit_bytes;

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- a process ---- */

static void look(void)
{
    uint64_t begin_ms = now_ms(), lowered = atomic_load(&shared->lowered), sum = 0,
             most = atomic_load(&shared->most_bytes);

    for (int i = 0; i < PROCESSES + DEATHS; i++) {
        uint64_t killed_ms = atomic_load(&shared->killed_ms[i]);
        if (!killed_ms || begin_ms < killed_ms + CLOSES_AFTER_MS)
            sum += atomic_load(&shared->live_bytes[i]);
    }
    if (atomic_load(&shared->lowered) != lowered || now_ms() - begin_ms > LOOK_MS)
        return;
    while (sum > most && !atomic_compare_exchange_weak(&shared->most_bytes, &most, sum))
        ;
    if (sum > limit_bytes)
        atomic_fetch_add(&shared->above, 1);
}

static void lower(int number, uint64_t bytes)
{
    atomic_fetch_sub(&shared->live_bytes[number], bytes);
    atomic_fetch_add(&shared->lowered, 1); /* before others can have the bytes */
}

static void live(int number)
{
    struct sequence random = {(uint64_t)number};
    struct {
        CUdeviceptr address;
        uint64_t bytes;
    } blocks[BLOCKS_MAX];
    unsigned count = 0;
    CUcontext context;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    for (;;) {
        uint64_t bytes = (1 + sequence_below(&random, BLOCK_MIB_MAX)) * MIB;
        CUdeviceptr address;
        if (count == BLOCKS_MAX || (count && sequence_below(&random, 2))) {
            count--;
            lower(number, blocks[count].bytes);
            MUST(cuMemFree(blocks[count].address));
        } else if (cuMemAlloc(&address, (size_t)bytes) == CUDA_SUCCESS) {
            atomic_fetch_add(&shared->live_bytes[number], bytes);
            blocks[count].address = address;
            blocks[count++].bytes = bytes;
            atomic_fetch_add(&shared->served, 1);
            look();
        } else {
            atomic_fetch_add(&shared->refused, 1);
        }
    }
}

/* ---- their parent, which makes no call of CUDA ---- */

/* This program anew, as settings are those that a process is started with: every other process
 * keeps what it has freed, for itself and for those that ask. */
static pid_t start(char *limit, int number)
{
    pid_t process = fork();
    char name[] = "job_deaths", text[16];

    CHECK(process >= 0);
    if (process > 0)
        return process;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    setenv("RMM_RESOURCE", number % 2 ? "cuda" : "pool(cuda)", 1);
    snprintf(text, sizeof(text), "%d", number);
    execv("/proc/self/exe", (char *[]){name, limit, text, NULL});
    CHECK(!"executed");
    return 0;
}

/* Behind a descriptor that all inherit. */
static void map_shared(bool is_first)
{
    CHECK(!is_first || dup2(memfd_create("job_deaths", 0), SHARED_FD) == SHARED_FD);
    CHECK(!is_first || ftruncate(SHARED_FD, sizeof(*shared)) == 0);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
    CHECK(shared != MAP_FAILED);
}

static void kill_and_wait(pid_t process, int number)
{
    int status;

    atomic_store(&shared->killed_ms[number], now_ms());
    CHECK(kill(process, SIGKILL) == 0 && waitpid(process, &status, 0) == process);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it has not ended by itself */
}

static void nap_ms(uint64_t ms)
{
    struct timespec pause = {0, (long)ms * 1000000};

    nanosleep(&pause, NULL);
}

/* True when the limit was reached at all. */
static int have_filled_it(void)
{
    return shared->served > DEATHS && shared->refused > 0 && shared->most_bytes > limit_bytes / 2;
}

int main(int argc, char **argv)
{
    struct sequence random = {32};
    int numbers[PROCESSES], count = 0;
    pid_t processes[PROCESSES];

    CHECK(argc >= 2);
    limit_bytes = strtoull(argv[1], NULL, 10) * MIB;
    map_shared(argc == 2);
    if (argc > 2)
        live(atoi(argv[2]));
    for (; count < PROCESSES; count++) {
        numbers[count] = count;
        processes[count] = start(argv[1], count);
    }
    while (count < PROCESSES + DEATHS) {
        size_t which = (size_t)sequence_below(&random, PROCESSES);
        nap_ms(sequence_below(&random, 2ull * KILL_EVERY_MS));
        kill_and_wait(processes[which], numbers[which]);
        numbers[which] = count;
        processes[which] = start(argv[1], count++);
    }
    while (!have_filled_it())
        nap_ms(1);
    for (int i = 0; i < PROCESSES; i++)
        kill_and_wait(processes[i], numbers[i]);
    printf("above: %llu of %llu\n", (unsigned long long)shared->above,
           (unsigned long long)shared->served);
    fprintf(stderr, "served %llu, refused %llu, most %llu MiB\n",
            (unsigned long long)shared->served, (unsigned long long)shared->refused,
            (unsigned long long)shared->most_bytes / MIB);
    return shared->above > 0;
}
