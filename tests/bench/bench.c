/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of allocation and deallocation.
 *
 *   bench [--memory NAME[,POOL_BYTES]] [--core N] WORKLOAD ARGUMENTS   one workload
 *   bench --turns                                                     lines from standard input
 *
 *   pairs BYTES MS                 allocate and deallocate one block, again and again
 *   threads COUNT BYTES MS [own]   the same by several threads at once; own: each with a stream of
 *                                  its own, for memory that knows streams
 *   random_rmm COUNT MAX_MIB MS    RMM's benchmark of random allocations (random_sequence.h)
 *   random_log BYTES LIVE_BYTES MS sizes of all magnitudes up to BYTES, about half of 1024 blocks
 *                                  live, at most LIVE_BYTES of them
 *   busy BYTES KERNELS             deallocations while a kernel runs
 *   fence                          what the driver takes for a fence, and for asking after it
 *   streams COUNT KERNELS          kernels on so many streams, each with a block meanwhile
 *   tails BYTES PAIRS              pairs while one kernel runs, by decades; BYTES 0: 256 B, 4 and
 *                                  64 KiB
 *
 * and, as lines of their own, memory NAME [POOL_BYTES] and core N|all.  A workload takes about MS
 * milliseconds.  Figures are printed as `NAME VALUE ns KEY=NUMBER...`: per pair (pairs), per round
 * in which each thread makes a pair (threads), per single operation (random), per deallocation
 * (busy), for all kernels together (streams), the median of a call (tails); with --turns a line
 * `done` follows.  Exit status: 1 when a call failed, 2 for wrong usage. */
#include "bench.h"

#include "sample.h"

#include <sched.h>
#include <string.h>

enum { WORDS = 8 };

static const struct bench_memory *memory;
static cpu_set_t all_cores;

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

uint64_t bench_median(uint64_t *numbers, unsigned count)
{
    qsort(numbers, count, sizeof(numbers[0]), ascending);
    return numbers[count / 2];
}

void *bench_driver_function(const char *name)
{
    enum cudaDriverEntryPointQueryResult found;
    void *function = NULL;

    MUST(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
    CHECK(function);
    return function;
}

static int choose_memory(const char *name, size_t pool_bytes)
{
    const struct bench_memory *const *at = bench_memories;

    while (*at && strcmp((*at)->name, name))
        at++;
    if (!*at)
        return 2;
    if (memory && memory->close)
        memory->close();
    memory = *at;
    if (memory->open)
        MUST(memory->open(pool_bytes));
    return 0;
}

static int choose_core(const char *name)
{
    cpu_set_t cores = all_cores;

    if (strcmp(name, "all")) {
        int core = atoi(name);
        if (core < 0 || core >= CPU_SETSIZE)
            return 2;
        CPU_ZERO(&cores);
        CPU_SET(core, &cores);
    }
    MUST(sched_setaffinity(0, sizeof(cores), &cores));
    return 0;
}

static uint64_t number(const char *word)
{
    return strtoull(word, NULL, 0);
}

static uint64_t milliseconds(const char *word)
{
    return number(word) * 1000000u;
}

static int run(char **words, unsigned count)
{
    const char *name = words[0];

    if (!strcmp(name, "memory") && (count == 2 || count == 3))
        return choose_memory(words[1], count == 3 ? number(words[2]) : 0);
    if (!strcmp(name, "core") && count == 2)
        return choose_core(words[1]);
    if (!strcmp(name, "pairs") && count == 3)
        bench_pairs(memory, number(words[1]), milliseconds(words[2]));
    else if (!strcmp(name, "threads") && (count == 4 || (count == 5 && !strcmp(words[4], "own"))))
        bench_threads(memory, (unsigned)number(words[1]), number(words[2]), milliseconds(words[3]),
                      count == 5);
    else if (!strcmp(name, "random_rmm") && count == 4)
        bench_random_rmm(memory, (unsigned)number(words[1]), (unsigned)number(words[2]),
                         milliseconds(words[3]));
    else if (!strcmp(name, "random_log") && count == 4)
        bench_random_log(memory, number(words[1]), number(words[2]), milliseconds(words[3]));
    else if (!strcmp(name, "busy") && count == 3)
        bench_busy(memory, number(words[1]), (unsigned)number(words[2]));
    else if (!strcmp(name, "fence") && count == 1)
        bench_fence();
    else if (!strcmp(name, "tails") && count == 3)
        bench_tails(memory, number(words[1]), (unsigned)number(words[2]));
    else if (!strcmp(name, "streams") && count == 3)
        bench_streams(memory, (unsigned)number(words[1]), (unsigned)number(words[2]));
    else
        return 2;
    return 0;
}

static int take_turns(void)
{
    char line[256];

    puts("ready");
    while (fflush(stdout), fgets(line, sizeof(line), stdin)) {
        char *words[WORDS], *rest = line;
        unsigned count = 0;
        while (count < WORDS && (words[count] = strtok_r(rest, " \n", &rest)))
            count++;
        if (!count || run(words, count) != 0) {
            fprintf(stderr, "bench: wrong line: %s\n", line);
            return 2;
        }
        puts("done");
    }
    return 0;
}

static int usage(void)
{
    fprintf(stderr,
            "usage: bench [--memory NAME[,POOL_BYTES]] [--core N] WORKLOAD ARGUMENTS | --turns\n"
            "memory:");
    for (const struct bench_memory *const *at = bench_memories; *at; at++)
        fprintf(stderr, " %s", (*at)->name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    bool turns = false;
    int first = 1;

    MUST(sched_getaffinity(0, sizeof(all_cores), &all_cores));
    MUST(cudaSetDevice(0));
    MUST(cudaFree(NULL));
    if (choose_memory(bench_memories[0]->name, 0))
        return 2;
    for (; first < argc && !strncmp(argv[first], "--", 2); first++) {
        int result = 2;
        if (!strcmp(argv[first], "--turns")) {
            turns = true;
            result = 0;
        } else if (!strcmp(argv[first], "--memory") && first + 1 < argc) {
            char *rest = argv[++first], *name = strtok_r(rest, ",", &rest);
            result = name ? choose_memory(name, number(rest)) : 2;
        } else if (!strcmp(argv[first], "--core") && first + 1 < argc) {
            result = choose_core(argv[++first]);
        }
        if (result)
            return usage();
    }
    if (turns == (first < argc))
        return usage();
    if (turns ? take_turns() : run(argv + first, (unsigned)(argc - first)))
        return turns ? 2 : usage();
    if (memory->close)
        memory->close();
    return 0;
}
