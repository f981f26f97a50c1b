/* SPDX-License-Identifier: Apache-2.0 */
/* A replay's device and clock are the process's (replay/device.h), so each core has a process of
 * its own, which takes the next candidate until none is left. */
#include "tool/tune/search.h"

#include "base/arithmetic.h"
#include "tool/tool.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    GENERATIONS_MAX = 8, /* halving a tenth of the live bytes so often leaves less than 0.1 % */
    WORKERS_MAX = 256,
};

/* Of the device: more than any has, or than any stack holds that is worth showing.  `virtual` keeps
 * tables for four times of it, so it is not as much as can be. */
#define MEMORY_BYTES ((uint64_t)1 << 40)
#define MEMORY_PEAKS 16

/* In the memory that the processes share, behind the candidates. */
struct turn {
    atomic_size_t next;
};

static size_t shared_bytes(void)
{
    return TUNE_CANDIDATES_MAX * sizeof(struct tune_candidate) + sizeof(struct turn);
}

static struct turn *turn_of(const struct tune_search *search)
{
    return (struct turn *)(void *)(search->candidates + TUNE_CANDIDATES_MAX);
}

/* ---- one candidate ---- */

static void say_nothing(void *data, const char *line)
{
    (void)data;
    (void)line;
}

static void play(const struct tune_search *search, struct tune_candidate *candidate)
{
    struct rs_diagnostics nobody = {.write = say_nothing};

    candidate->is_played = replay_play(search->recording, &search->settings, candidate->expression,
                                       &nobody, &candidate->result);
}

/* Writes a byte for each one that is done. */
static void play_next(const struct tune_search *search, int done)
{
    size_t number;

    while ((number = atomic_fetch_add(&turn_of(search)->next, 1)) < search->count) {
        play(search, &search->candidates[number]);
        if (write(done, "", 1) != 1)
            return;
    }
}

/* ---- processes ---- */

static size_t core_count(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;

    return rs_min(rs_max((size_t)count, 1), WORKERS_MAX);
}

static pid_t start_worker(const struct tune_search *search, const int pipe_ends[2])
{
    pid_t parent = getpid(), worker = fork();

    if (worker != 0)
        return worker;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) {
        close(pipe_ends[0]);
        play_next(search, pipe_ends[1]);
    }
    _exit(0);
}

static void say_progress(size_t done, size_t count)
{
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\rrmmshim: %zu of %zu stacks replayed", done, count);
}

static void end_progress(void)
{
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
}

/* Until all workers have closed their end. */
static void watch(const struct tune_search *search, size_t done, int fd)
{
    char bytes[256];
    ssize_t got;

    while ((got = read(fd, bytes, sizeof(bytes))) != 0) {
        if (got < 0 && errno != EINTR)
            break;
        done += got > 0 ? (size_t)got : 0;
        say_progress(done, search->count);
    }
    end_progress();
}

/* Plays the candidates from number `first` on. */
static bool play_from(struct tune_search *search, size_t first)
{
    size_t count = rs_min(core_count(), search->count - first), started = 0;
    pid_t workers[WORKERS_MAX];
    int pipe_ends[2];

    if (pipe(pipe_ends) != 0) {
        tool_say("%s", strerror(errno));
        return false;
    }
    atomic_store(&turn_of(search)->next, first);
    say_progress(first, search->count);
    while (started < count && (workers[started] = start_worker(search, pipe_ends)) > 0)
        started++;
    close(pipe_ends[1]);
    watch(search, first, pipe_ends[0]);
    close(pipe_ends[0]);
    for (size_t i = 0; i < started; i++)
        (void)waitpid(workers[i], NULL, 0);
    if (started == 0)
        tool_say("no process could be started: %s", strerror(errno));
    return started > 0;
}

/* ---- the search ---- */

static void sum_up(struct tune_search *search, size_t first)
{
    for (size_t i = first; i < search->count; i++) {
        const struct tune_candidate *candidate = &search->candidates[i];
        const struct replay_result *result = &candidate->result;
        search->points[i] = (struct tune_point){
            .held_bytes = result->peak_held_bytes,
            .stops = result->upstream_allocations + result->upstream_frees + result->waits +
                     result->free_waits,
            .is_out = !candidate->is_played || result->refusals > 0,
            .is_bounded = candidate->of->is_bounded,
        };
        search->failed_count += !candidate->is_played;
    }
}

/* Candidates beside those of the front. */
static bool add_generation(struct tune_search *search)
{
    size_t before = search->count, *front = calloc(TUNE_CANDIDATES_MAX, sizeof(*front)), found;

    if (!front)
        return false;
    found = tune_front(search->points, before, front);
    for (size_t i = 0; i < found; i++)
        search->count = tune_candidates_refine(&search->facts, search->candidates, search->count,
                                               TUNE_CANDIDATES_MAX, front[i]);
    free(front);
    return search->count > before;
}

static bool make_first(struct tune_search *search)
{
    void *shared =
        mmap(NULL, shared_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    search->candidates = shared == MAP_FAILED ? NULL : shared;
    search->points = calloc(TUNE_CANDIDATES_MAX, sizeof(*search->points));
    if (!search->candidates || !search->points ||
        !tune_facts_gather(&search->facts, search->recording, search->settings.device)) {
        tool_say("out of memory");
        return false;
    }
    if (search->facts.allocations == 0) {
        tool_say("the recording has no allocation of device %d", search->settings.device);
        return false;
    }
    search->count = tune_candidates_make(&search->facts, search->candidates, TUNE_CANDIDATES_MAX);
    return true;
}

bool tune_search_run(struct tune_search *search)
{
    enum { OPERATION_NS = 10 * 1000 };
    size_t first = 0;

    search->candidates = NULL;
    search->count = search->failed_count = 0;
    if (!make_first(search))
        return false;
    search->settings.capacity_bytes =
        rs_max(MEMORY_BYTES, MEMORY_PEAKS * search->facts.peak_live_bytes);
    if (!search->facts.has_times)
        search->settings.operation_ns = OPERATION_NS;
    for (int generation = 0; generation < GENERATIONS_MAX; generation++) {
        if (!play_from(search, first))
            return false;
        sum_up(search, first);
        first = search->count;
        if (!add_generation(search))
            break;
    }
    search->count = first;
    return true;
}

void tune_search_end(struct tune_search *search)
{
    tune_facts_release(&search->facts);
    free(search->points);
    if (search->candidates)
        munmap(search->candidates, shared_bytes());
}
