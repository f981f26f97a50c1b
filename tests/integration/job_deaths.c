/* SPDX-License-Identifier: Apache-2.0 */
/* 32 processes of a job that allocate and free at random, each killed at a random moment and
 * followed by another, until DEATHS have died.  No two of them together ever have more than the
 * limit, in MiB, the argument; prints "above" where they do.
 *
 * Each has a counter of its live bytes, raised after an allocation and lowered before a free, so it
 * is never more than what the process has.  A sum of all counters that were read while none was
 * lowered is at most what they had at its end.  The parent lowers the counter of a dead process
 * later than it is seen to be gone, as the kernel closes its device late. */
#include "../samples/sample.h"

#include <cuda.h>
#include <signal.h>
#include <stdatomic.h>
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
    BLOCKS_MAX = 16,
    BLOCK_MIB_MAX = 8,
    MIB = 1 << 20,
};

/* What all processes see. */
static struct {
    _Atomic uint64_t live_bytes[PROCESSES + DEATHS]; /* of each process that there ever was */
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
    uint64_t lowered = atomic_load(&shared->lowered), sum = 0,
             most = atomic_load(&shared->most_bytes);

    for (int i = 0; i < PROCESSES + DEATHS; i++)
        sum += atomic_load(&shared->live_bytes[i]);
    if (atomic_load(&shared->lowered) != lowered)
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

/* Every other process keeps what it has freed, for itself and for those that ask. */
static void live(int number)
{
    struct sequence random = {(uint64_t)number};
    struct {
        CUdeviceptr address;
        uint64_t bytes;
    } blocks[BLOCKS_MAX];
    unsigned count = 0;
    CUcontext context;

    setenv("RMM_RESOURCE", number % 2 ? "cuda" : "pool(cuda)", 1);
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

static pid_t start(int number)
{
    pid_t process = fork();

    CHECK(process >= 0);
    if (process > 0)
        return process;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    live(number);
    return 0;
}

static void kill_and_wait(pid_t process)
{
    int status;

    CHECK(kill(process, SIGKILL) == 0 && waitpid(process, &status, 0) == process);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it has not ended by itself */
}

/* Closes the devices of those that died CLOSES_AFTER_MS ago: died_ms[number]. */
static void close_devices(uint64_t *died_ms, int count)
{
    for (int i = 0; i < count; i++)
        if (died_ms[i] && now_ms() - died_ms[i] >= CLOSES_AFTER_MS) {
            died_ms[i] = 0;
            lower(i, atomic_load(&shared->live_bytes[i]));
        }
}

int main(int argc, char **argv)
{
    static uint64_t died_ms[PROCESSES + DEATHS];
    struct sequence random = {32};
    int numbers[PROCESSES], count = 0;
    pid_t processes[PROCESSES];

    CHECK(argc == 2);
    limit_bytes = strtoull(argv[1], NULL, 10) * MIB;
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    for (; count < PROCESSES; count++) {
        numbers[count] = count;
        processes[count] = start(count);
    }
    while (count < PROCESSES + DEATHS) {
        size_t which = (size_t)sequence_below(&random, PROCESSES);
        struct timespec pause = {0, (long)sequence_below(&random, 2ull * KILL_EVERY_MS) * 1000000};
        nanosleep(&pause, NULL);
        kill_and_wait(processes[which]);
        died_ms[numbers[which]] = now_ms();
        close_devices(died_ms, count);
        numbers[which] = count;
        processes[which] = start(count++);
    }
    for (int i = 0; i < PROCESSES; i++)
        kill_and_wait(processes[i]);
    CHECK(shared->served > DEATHS && shared->refused > 0);
    CHECK(shared->most_bytes > limit_bytes / 2); /* the limit was reached at all */
    printf("above: %llu of %llu\n", (unsigned long long)shared->above,
           (unsigned long long)shared->served);
    fprintf(stderr, "served %llu, refused %llu, most %llu MiB\n",
            (unsigned long long)shared->served, (unsigned long long)shared->refused,
            (unsigned long long)shared->most_bytes / MIB);
    return shared->above > 0;
}
