/* SPDX-License-Identifier: Apache-2.0 */
/* The memory file of a job's limit, its numbers and their mutex, for job_limit.c and job_share.c;
 * shared/job_limit.h tells what it is for. */
#pragma once

#include "base/check.h"
#include "base/process.h"
#include "shared/job_limit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define RS_JOB_LIMIT_LAYOUT "rmmshim job limit 4"
#define RS_JOB_LIMIT_NAME   "rmmshim-limit" /* the memory file's name */

enum {
    RS_JOB_ENTRIES = 12288, /* processes, and pairs of a process and a device, at a time */
    RS_JOB_LIMIT_SETTLE_MS = 2000,
    RS_JOB_LIMIT_STUCK_MS = 2000, /* how long an owner of the mutex may not run */
    RS_JOB_LIMIT_KEPT_MS =
        1000, /* how long bytes are kept for a member after its latest question */
};

/* What a member has taken of one device.  Each member also has one entry for itself. */
struct rs_job_entry {
    _Atomic uint64_t owner;       /* process number << 32 | its start in ticks; 0: free */
    _Atomic uint64_t uuid[2];     /* of the device; 0: the member's entry for itself */
    _Atomic uint64_t taken_bytes; /* raised for a request under the mutex alone */
    _Atomic uint64_t kept_bytes;  /* that others gave back for it */
    _Atomic uint64_t idle_bytes;  /* part of what it has that others may have, as far as known: it
                                     says so now and then */
    _Atomic uint64_t wanted_bytes, ticket, asked_ms; /* of requests that wait, and their latest
                                                        question */
    _Atomic uint64_t ended_ms;       /* when the owner was first seen to be gone; 0: it was not */
    _Atomic uint64_t commands_inode; /* its file of commands (shared/commands.h), and there the */
    _Atomic uint64_t commands_fd;    /* descriptor + 1; 0: it has none */
};

struct rs_job_limit {
    char layout[32];
    char boot[RS_BOOT_BYTES];      /* in which its members run */
    _Atomic uint64_t home;         /* the PID namespace of all members */
    struct rs_size limit;          /* of each device */
    _Atomic uint32_t entries_used; /* none beyond was ever taken */
    _Atomic uint32_t turns;        /* of the mutex */
    _Atomic uint32_t joins;        /* turns of the file lock */
    _Atomic uint64_t tickets;
    _Atomic uint32_t asked;    /* how often members have asked for idle bytes */
    _Atomic uint32_t releases; /* grows when a member gives bytes back; a futex */
    struct rs_job_entry entries[RS_JOB_ENTRIES];
    pthread_mutex_t mutex;
};

/* ---- numbers ---- */

static inline uint64_t job_get(const _Atomic uint64_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

static inline void job_set(_Atomic uint64_t *number, uint64_t value)
{
    atomic_store_explicit(number, value, memory_order_relaxed);
}

static inline void job_add(_Atomic uint64_t *number, uint64_t more)
{
    job_set(number, job_get(number) + more);
}

#define FOR_EACH_ENTRY(entry, job)                                                                 \
    for (struct rs_job_entry *entry = (job)->entries,                                              \
                             *entry##_end = entry + rs_min(atomic_load(&(job)->entries_used),      \
                                                           RS_JOB_ENTRIES);                        \
         entry < entry##_end; entry++)                                                             \
        if (job_get(&entry->owner) != 0)

/* Those of the share's device. */
#define FOR_EACH_SHARER(entry, share)                                                              \
    FOR_EACH_ENTRY(entry, (share)->job)                                                            \
    if (job_get(&entry->uuid[0]) == (share)->uuid[0] &&                                            \
        job_get(&entry->uuid[1]) == (share)->uuid[1])

/* A free entry, which is the owner's now; NULL when all are taken.  Under the mutex. */
struct rs_job_entry *job_take_entry(struct rs_job_limit *job, uint64_t owner,
                                    const uint64_t uuid[2]);

/* ---- the mutex ---- */

/* The job's clock, in which processes tell each other times. */
uint64_t job_now_ms(void);

/* While a thread waits for the mutex: the turn that it last saw, and since when that turn lasts. */
struct job_patience {
    uint64_t turn, since_ns;
};

/* True when the mutex's owner has not run for RS_JOB_LIMIT_STUCK_MS.  True at once while it is in
 * the turn in which it was found stuck before, or when it is this very thread, which a signal
 * handler interrupted. */
bool job_is_stuck(struct rs_job_limit *job, struct job_patience *patience);

/* Both are undone by job_unlock.  With `waits`, job_lock waits until the mutex is stuck; else it
 * gives up after a few microseconds. */
bool job_try_lock(struct rs_job_limit *job);
bool job_lock(struct rs_job_limit *job, bool waits);
void job_unlock(struct rs_job_limit *job);

enum { JOB_TRIES = 150 }; /* to lock the mutex; from then on rs_pause naps */
