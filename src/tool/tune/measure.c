/* SPDX-License-Identifier: Apache-2.0 */
#include "base/lock.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"
#include "tool/tune/tune.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child: becomes the program, as `rmmshim run --exec` does. The program gets no input; its
 * output is discarded, since it would appear once for each run. The two words before its name,
 * which were `--run` and the number of runs, are overwritten. */
static _Noreturn void become(char **program, const char *resource, const char *limit)
{
    static char exec[] = "--exec", end[] = "--";
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        (void)dup2(nothing, stream);
    program[-2] = exec;
    program[-1] = end;
    if (!tool_set("RMM_RESOURCE", resource) || (limit && !tool_set("RMM_LIMIT", limit)))
        _exit(TOOL_RUN_FAILED);
    _exit(tool_run.run(program - 2));
}

static int say_failed(int status, const char *resource)
{
    bool is_signal = WIFSIGNALED(status);

    progress_clear();
    tool_say("with RMM_RESOURCE='%s' the program %s %d, so tune shows no results; `rmmshim run "
             "--resource '%s' PROGRAM` shows the program's output",
             resource, is_signal ? "was ended by signal" : "ended with exit code",
             is_signal ? WTERMSIG(status) : WEXITSTATUS(status), resource);
    return TOOL_FINDING;
}

static int run_once(char **program, const char *resource, const char *limit, double *seconds)
{
    uint64_t begin_ns = rs_clock_ns();
    pid_t child;
    int status;

    (void)fflush(stdout);
    child = fork();
    if (child == 0)
        become(program, resource, limit);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    *seconds = (double)(rs_clock_ns() - begin_ns) / 1e9;
    if (child < 0) {
        tool_say("%s: %s", program[0], strerror(errno));
        return TOOL_FINDING;
    }
    return status == 0 ? TOOL_OK : say_failed(status, resource);
}

/* Finds the fastest finalist and which others take longer. Other work of the machine affects all
 * runs of one round alike, so the differences within rounds are judged, not the times. */
static void judge(struct tune_runs *runs)
{
    double *numbers = tool_grow(NULL, runs->rounds * sizeof(*numbers));

    runs->fastest = runs->finalists[0];
    for (size_t i = 0; i < runs->count; i++) {
        struct tune_candidate *one = runs->finalists[i];
        memcpy(numbers, one->seconds, runs->rounds * sizeof(*numbers));
        one->interval = interval_of(numbers, runs->rounds);
        if (one->interval.median < runs->fastest->interval.median)
            runs->fastest = one;
    }
    for (size_t i = 0; i < runs->count; i++) {
        struct tune_candidate *one = runs->finalists[i];
        for (size_t round = 0; round < runs->rounds; round++)
            numbers[round] = one->seconds[round] - runs->fastest->seconds[round];
        one->is_told_apart = interval_of(numbers, runs->rounds).low > 0;
    }
    free(numbers);
}

/* Each round begins with another finalist, since the first run of a round finds other contents in
 * the caches. */
int tune_run(struct tune_runs *runs, char **program, const char *limit)
{
    int code = TOOL_OK;

    for (size_t i = 0; i < runs->count; i++)
        runs->finalists[i]->seconds = tool_grow(NULL, runs->rounds * sizeof(double));
    for (size_t round = 0; round < runs->rounds; round++)
        for (size_t i = 0; i < runs->count && code == TOOL_OK; i++) {
            struct tune_candidate *one = runs->finalists[(round + i) % runs->count];
            progress_show("running", round * runs->count + i, runs->rounds * runs->count);
            code = run_once(program, one->resource, limit, &one->seconds[round]);
        }
    progress_clear();
    if (code == TOOL_OK)
        judge(runs);
    return code;
}
