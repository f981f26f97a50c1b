/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of the memory file of a job's limit, for job_limit.c and job_share.c alone.
 * shared/job_limit.h says what the file is for. */
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
    RS_JOB_ENTRIES = 12288, /* the most entries at a time: one for each process, and one for each
                               device that a process uses */
    RS_JOB_LIMIT_SETTLE_MS = 2000,
    /* An owner of the mutex that was not seen runnable for this long counts as stuck. */
    RS_JOB_LIMIT_STUCK_MS = 2000,
    RS_JOB_LIMIT_KEPT_MS = 1000, /* how long bytes are reserved for a member after it last asked */
};

/* An entry: what a member has taken of one device. Each member also has one entry for itself. */
struct rs_job_entry {
    _Atomic uint64_t owner;   /* process number << 32 | its start in ticks; 0: free */
    _Atomic uint64_t uuid[2]; /* the UUID of the device; 0: this is the member's entry for itself */
    _Atomic uint64_t taken_bytes; /* a request raises it only under the mutex */
    /* Bytes that others gave back and that are reserved for this member. */
    _Atomic uint64_t kept_bytes;
    _Atomic uint64_t idle_bytes; /* the part of taken_bytes that the member last declared idle, so
                                    that others may ask for it */
    /* For the member's requests that wait: the bytes that they want, their place in the queue, and
     * when they last asked. */
    _Atomic uint64_t wanted_bytes, ticket, asked_ms;
    _Atomic uint64_t ended_ms;       /* when the owner was first seen to be dead; 0: it was not */
    _Atomic uint64_t commands_inode; /* the inode of its file of commands, and */
    _Atomic uint64_t commands_fd;    /* its descriptor + 1; 0: there is none */
};

struct rs_job_limit {
    char layout[32];
    char boot[RS_BOOT_BYTES];      /* the boot in which the members run */
    _Atomic uint64_t home;         /* the PID namespace in which all members run */
    struct rs_size limit;          /* the limit of each device */
    _Atomic uint32_t entries_used; /* entries from this index on were never taken */
    _Atomic uint32_t turns;        /* how often the mutex was locked */
    _Atomic uint32_t joins;        /* how often the file lock was taken */
    _Atomic uint64_t tickets;
    _Atomic uint32_t asked;    /* how often any member has asked for idle bytes */
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

/* Goes through the entries of the share's device. */
#define FOR_EACH_SHARER(entry, share)                                                              \
    FOR_EACH_ENTRY(entry, (share)->job)                                                            \
    if (job_get(&entry->uuid[0]) == (share)->uuid[0] &&                                            \
        job_get(&entry->uuid[1]) == (share)->uuid[1])

/* Returns a free entry, taken for the owner; NULL if none is free. The caller holds the mutex. */
struct rs_job_entry *job_take_entry(struct rs_job_limit *job, uint64_t owner,
                                    const uint64_t uuid[2]);

/* ---- the mutex ---- */

/* Returns the time of the clock that all members share. */
uint64_t job_now_ms(void);

/* What a thread that waits for the mutex remembers: the turn that it last saw, and since when. */
struct job_patience {
    uint64_t turn, since_ns;
};

/* True when the mutex's owner has held it for RS_JOB_LIMIT_STUCK_MS without being seen runnable (it
 * is stopped or blocked).  True at once if the owner was found stuck before and still has the same
 * turn, or if the owner is this very thread, interrupted by a signal handler.  *patience is zero at
 * first, and the caller keeps it between calls. */
bool job_is_stuck(struct rs_job_limit *job, struct job_patience *patience);

/* job_try_lock and job_lock return true when they have locked the mutex; job_unlock unlocks it.
 * With `waits`, job_lock waits until it has the mutex or the mutex's owner is stuck; without, it
 * gives up after a few microseconds. */
bool job_try_lock(struct rs_job_limit *job);
bool job_lock(struct rs_job_limit *job, bool waits);
void job_unlock(struct rs_job_limit *job);

enum { JOB_TRIES = 150 }; /* attempts to lock the mutex before job_is_stuck is called too */
