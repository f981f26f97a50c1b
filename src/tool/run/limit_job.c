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

static struct rs_job_limit *job;
static int file = -1;

static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value && *value;
}

/* That of a `run` above. */
static bool has_joined_another(void)
{
    int copy;

    if (rs_run_ask(RS_JOB_GIVE_LIMIT, -1, &file) != 0)
        return false;
    copy = fcntl(file, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); /* which rs_job_limit_open closes */
    if (copy >= 0 && rs_job_limit_open(copy, NULL, &job, NULL) == 0)
        return true;
    close(file);
    file = -1;
    return false;
}

static bool make(void)
{
    job = shared_file_make(RS_JOB_LIMIT_NAME, sizeof(*job), &file);
    if (job)
        rs_job_limit_init(job);
    else
        tool_say("RMM_LIMIT_JOB: %s", strerror(errno));
    return job != NULL;
}

bool limit_job_begin(bool becomes)
{
    if (!is_set("RMM_LIMIT_JOB") || is_set("RMM_JOB") || (becomes && has_joined_another()))
        return true;
    if (!becomes)
        return has_joined_another() || make();
    tool_say("RMM_LIMIT_JOB: with --exec nobody holds the job; name a file for it with --job");
    return false;
}

/* Each process locks the file (flock), so each needs one that was opened for it alone. */
int limit_job_open(void)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", file);
    return file < 0 ? -1 : open(path, O_RDWR | O_CLOEXEC);
}

void limit_job_look(void)
{
    if (job)
        (void)rs_job_limit_reap(job);
}
