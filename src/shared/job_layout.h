/* SPDX-License-Identifier: Apache-2.0 */
/* The memory file of a job's limit; shared/job_limit.h tells what it is for. */
#pragma once

#include "base/process.h"
#include "base/size.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define RS_JOB_LIMIT_LAYOUT "rmmshim job limit 3"
#define RS_JOB_LIMIT_NAME   "rmmshim-limit" /* of the memory file */

enum {
    RS_JOB_MEMBERS = 4096, /* processes at a time */
    RS_JOB_DEVICES = 256,
    RS_JOB_ENTRIES = 8192,
    RS_JOBS_MAX = 4, /* one in the other */
    RS_JOB_UUID_BYTES = 16,
    RS_JOB_LIMIT_SETTLE_MS = 2000,
    RS_JOB_LIMIT_STUCK_MS = 2000, /* for an owner of the mutex that does not run */
    RS_JOB_LIMIT_KEPT_MS = 1000,  /* after a member has last asked */
};

struct rs_job_device {
    unsigned char uuid[RS_JOB_UUID_BYTES];
    _Atomic uint64_t total_bytes;
    _Atomic uint32_t is_used;
    _Atomic uint32_t is_late;  /* `late_bytes` have changed since the total was made */
    _Atomic uint32_t asked;    /* how often members have asked for idle bytes */
    _Atomic uint32_t releases; /* grows when a member gives bytes back; a futex */
};

struct rs_job_member {
    _Atomic uint64_t owner;          /* process number << 32 | its start in ticks; 0: free */
    _Atomic uint64_t ended_ms;       /* when the owner was first seen to be gone; 0: it was not */
    _Atomic uint64_t commands_inode; /* its file of commands (shared/commands.h), and there the */
    _Atomic uint64_t commands_fd;    /* descriptor + 1; 0: it has none */
};

struct rs_job_entry {
    _Atomic uint32_t member; /* its number + 1; 0: free */
    _Atomic uint32_t device;
    _Atomic uint64_t taken_bytes; /* under the mutex, and */
    _Atomic uint64_t late_bytes;  /* without it: the sum is what the member has */
    _Atomic uint64_t kept_bytes;  /* that others gave back for it */
    _Atomic uint64_t idle_bytes;  /* part of what it has that others may have, as far as known: it
                                     says so now and then */
    _Atomic uint64_t wanted_bytes, ticket, asked_ms; /* of requests that wait, and their latest
                                                        question */
};

struct rs_job_limit {
    char layout[32];
    char boot[RS_BOOT_BYTES];                    /* in which its members run */
    _Atomic uint64_t home;                       /* the PID namespace of all members */
    struct rs_size limit;                        /* of each device */
    _Atomic uint32_t members_used, entries_used; /* none beyond was ever taken */
    _Atomic uint32_t turns;                      /* of the mutex */
    _Atomic uint32_t joins;                      /* turns of the file lock */
    _Atomic uint64_t tickets;
    uint64_t unused;
    struct rs_job_device devices[RS_JOB_DEVICES];
    struct rs_job_member members[RS_JOB_MEMBERS];
    struct rs_job_entry entries[RS_JOB_ENTRIES];
    pthread_mutex_t mutex;
};

/* False where the kernel does not let go of the mutex of a thread that dies. */
bool rs_job_limit_can_be_kept(void);

/* Makes the memory of a new file, which is all zero, a job's, of the calling process's PID
 * namespace.  0, or -ENOTSUP on a kernel without robust mutexes. */
int rs_job_limit_init(struct rs_job_limit *job, struct rs_size limit);
