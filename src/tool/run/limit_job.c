/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/limit_job.h"

#include "shared/job_limit.h"
#include "tool/run/shared_file.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct rs_job_limit *job;

static bool is_set(const char *name)
{
    const char *value = getenv(name);

    return value && *value;
}

/* That of a `run` above, which holds it still. */
static bool is_in_a_job(void)
{
    struct rs_job_limit *other;

    if (!is_set(RS_JOB_LIMIT_VARIABLE) ||
        rs_job_limit_open(getenv(RS_JOB_LIMIT_VARIABLE), NULL, &other, NULL) != 0)
        return false;
    munmap(other, sizeof(*other));
    return true;
}

static bool make(void)
{
    job = shared_file_make(RS_JOB_LIMIT_NAME, sizeof(*job), RS_JOB_LIMIT_VARIABLE);
    if (job)
        rs_job_limit_init(job);
    else
        tool_say("RMM_LIMIT_JOB: %s", strerror(errno));
    return job != NULL;
}

bool limit_job_begin(bool becomes)
{
    if (!is_set("RMM_LIMIT_JOB") || is_set("RMM_JOB") || is_in_a_job())
        return true;
    if (!becomes)
        return make();
    tool_say("RMM_LIMIT_JOB: with --exec nobody holds the job; name a file for it with --job");
    return false;
}

void limit_job_look(void)
{
    if (job)
        (void)rs_job_limit_reap(job);
}
