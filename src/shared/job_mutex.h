/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of a job's limit and their mutex, for job_limit.c and job_share.c. */
#pragma once

#include "base/check.h"
#include "shared/job_layout.h"

static inline uint64_t get(const _Atomic uint64_t *number)
{
    return atomic_load_explicit(number, memory_order_relaxed);
}

static inline void set(_Atomic uint64_t *number, uint64_t value)
{
    atomic_store_explicit(number, value, memory_order_relaxed);
}

static inline void add(_Atomic uint64_t *number, uint64_t more)
{
    set(number, get(number) + more);
}

static inline uint64_t bytes_of(const struct rs_job_entry *entry)
{
    return get(&entry->taken_bytes) + get(&entry->late_bytes);
}

#define FOR_EACH_MEMBER(member, job)                                                               \
    for (struct rs_job_member *member = (job)->members,                                            \
                              *member##_end = member + rs_min(atomic_load(&(job)->members_used),   \
                                                              RS_JOB_MEMBERS);                     \
         member < member##_end; member++)

#define FOR_EACH_ENTRY(entry, job)                                                                 \
    for (struct rs_job_entry *entry = (job)->entries,                                              \
                             *entry##_end = entry + rs_min(atomic_load(&(job)->entries_used),      \
                                                           RS_JOB_ENTRIES);                        \
         entry < entry##_end; entry++)                                                             \
        if (atomic_load_explicit(&entry->member, memory_order_relaxed) != 0)

/* Those of one device. */
#define FOR_EACH_SHARER(entry, job, number)                                                        \
    FOR_EACH_ENTRY(entry, job)                                                                     \
    if (atomic_load_explicit(&entry->device, memory_order_relaxed) == (number))

/* The job's clock, in which processes tell each other times. */
uint64_t job_now_ms(void);

/* Adds a device's entries up.  Under the mutex. */
void job_make_total(struct rs_job_limit *job, uint32_t number);

/* Reads /proc/PROCESS/NAME, as far as it fits. */
bool job_read_proc(pid_t process, const char *name, char text[1024]);

/* Of one that waits for the mutex: its owner's turn, and since when that does not end. */
struct job_patience {
    uint64_t turn, since_ns;
};

/* True when the mutex's owner has not got on for RS_JOB_LIMIT_STUCK_MS, and at once while it is the
 * one that was found so before, or is this thread, in a signal handler. */
bool job_is_stuck(struct rs_job_limit *job, struct job_patience *patience);

/* All end with job_unlock.  `waits`: until the mutex is stuck, else a few microseconds. */
bool job_try_lock(struct rs_job_limit *job);
bool job_lock(struct rs_job_limit *job, bool waits);
void job_unlock(struct rs_job_limit *job);

enum { JOB_TRIES = 150 }; /* for the mutex: from then on rs_pause naps */
