/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs in shared memory, and processes' shares of them. */
#pragma once

#include "unit.h"

#include "shared/job_layout.h"
#include "shared/job_limit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LIMIT = 1000 };

static const struct rs_size limit_size = {LIMIT, RS_SIZE_BYTES};
static const unsigned char first_uuid[16] = "first device";

/* Memory that is not mapped for one process alone. */
static inline void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static inline struct rs_job_limit *new_job(void)
{
    struct rs_job_limit *job = shared_memory(sizeof(*job));

    assert_int_equal(rs_job_limit_init(job, limit_size), 0);
    return job;
}

static inline struct rs_job_share share_of(struct rs_job_limit *job, const unsigned char *uuid,
                                           size_t limit_bytes)
{
    struct rs_job_share share = {
        .job = job, .member = rs_job_limit_join(job), .limit_bytes = limit_bytes};

    assert_non_null(share.member);
    memcpy(share.uuid, uuid, sizeof(share.uuid));
    rs_job_share_enter(&share);
    return share;
}

/* What is counted of all devices. */
static inline uint64_t total_in(struct rs_job_limit *job)
{
    uint64_t bytes = 0;

    FOR_EACH_ENTRY(entry, job)
    bytes += entry->taken_bytes + entry->kept_bytes;
    return bytes;
}

/* Ends the program where no job can be shared: qemu-user has no robust mutexes, and makes up what
 * /proc/self/stat says. */
static inline int skip_without_robust_mutexes(void)
{
    struct rs_job_limit *job = shared_memory(sizeof(*job));
    bool is_robust = rs_job_limit_init(job, limit_size) != -ENOTSUP;

    munmap(job, sizeof(*job));
    if (is_robust)
        return 0;
    puts("1..0 # SKIP no robust mutexes here");
    exit(EXIT_SUCCESS);
}
