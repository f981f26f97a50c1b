/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/limit_job.h"

#include "shared/job_limit.h"
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
        rs_job_limit_open(getenv(RS_JOB_LIMIT_VARIABLE), NULL, &other) != 0)
        return false;
    munmap(other, sizeof(*other));
    return true;
}

static bool put_into_environment(int fd)
{
    struct stat status;
    char where[64];

    if (fstat(fd, &status) != 0)
        return false;
    snprintf(where, sizeof(where), "%d:%d:%llu", (int)getpid(), fd,
             (unsigned long long)status.st_ino);
    return setenv(RS_JOB_LIMIT_VARIABLE, where, 1) == 0;
}

/* The descriptor stays open until this process ends. */
static bool make(void)
{
    int fd = memfd_create(RS_JOB_LIMIT_NAME, MFD_CLOEXEC);
    void *memory = MAP_FAILED;

    if (fd >= 0 && ftruncate(fd, sizeof(*job)) == 0)
        memory = mmap(NULL, sizeof(*job), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED || !put_into_environment(fd)) {
        tool_say("RMM_LIMIT_JOB: %s", strerror(errno));
        return false;
    }
    job = memory;
    rs_job_limit_init(job);
    return true;
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
