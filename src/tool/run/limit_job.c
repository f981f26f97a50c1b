/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/limit_job.h"

#include "shared/job.h"
#include "shared/job_limit.h"
#include "tool/run/shared_file.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* From the innermost one. */
static struct {
    struct rs_job_limit *job;
    struct rs_size limit;
    int file;
} jobs[RS_JOBS_MAX];

static uint32_t count;

static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value && *value;
}

/* Those of the `run` above. */
static bool have_those_above(void)
{
    int more, file, copy;

    do {
        more = rs_run_ask(RS_JOB_GIVE_LIMIT, count, -1, &file);
        if (more == -ENOENT || more == -EACCES || more == -ESTALE)
            return true;
        copy = more < 0 ? more : fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        if (copy < 0 || count == RS_JOBS_MAX ||
            rs_job_limit_open(copy, NULL, &jobs[count].limit, &jobs[count].job, NULL) != 0) {
            tool_say("RMM_LIMIT_JOB: the job of the enclosing `rmmshim run` cannot be joined");
            return false;
        }
        jobs[count++].file = file;
    } while (more > 0);
    return true;
}

static bool make(struct rs_size limit)
{
    int failed = E2BIG;

    if (count < RS_JOBS_MAX) {
        memmove(&jobs[1], &jobs[0], count++ * sizeof(jobs[0]));
        jobs[0].job = shared_file_make(RS_JOB_LIMIT_NAME, sizeof(*jobs[0].job), &jobs[0].file);
        failed = jobs[0].job ? -rs_job_limit_init(jobs[0].job, limit) : errno;
    }
    if (failed)
        tool_say("RMM_LIMIT_JOB: %s", strerror(failed));
    return failed == 0;
}

/* A limit that is inherited is the same one. */
static bool is_held_above(struct rs_size limit)
{
    char text[RS_SIZE_TEXT_BYTES];

    if (count == 0 || limit.kind != jobs[0].limit.kind || limit.number < jobs[0].limit.number)
        return false;
    if (limit.number > jobs[0].limit.number)
        tool_say("RMM_LIMIT_JOB=%s: the job of the enclosing `rmmshim run` has a limit of %s, "
                 "which applies instead",
                 getenv("RMM_LIMIT_JOB"), rs_size_write(jobs[0].limit, text));
    return true;
}

bool limit_job_begin(bool becomes)
{
    const char *text = getenv("RMM_LIMIT_JOB"), *at, *reason;
    struct rs_size limit;

    if (!is_set("RMM_LIMIT_JOB") || !rs_size_parse(text, strchr(text, 0), &limit, &at, &reason))
        return true;
    if (!have_those_above())
        return false;
    if (is_set("RMM_JOB") || is_held_above(limit))
        return true;
    if (!becomes)
        return make(limit);
    tool_say(
        "RMM_LIMIT_JOB: --exec leaves no parent to hold the job; name a file for it with --job");
    return false;
}

uint32_t limit_job_file(uint32_t number, int *file)
{
    if (number >= count)
        return 0;
    *file = jobs[number].file;
    return count - number;
}

void limit_job_look(void)
{
    for (uint32_t i = 0; i < count; i++)
        (void)rs_job_limit_reap(jobs[i].job);
}
