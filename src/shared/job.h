/* SPDX-License-Identifier: Apache-2.0 */
/* How a process hands its published memory (shared/published.h) to the `rmmshim run` above it.
 * `rmmshim run` has a memory file with a slot for each process that hands over.  RMMSHIM_JOB
 * names it ("PID:DESCRIPTOR:INODE"), and processes open it through /proc.  A process in another
 * PID namespace does not find it there, and hands over nothing. */
#pragma once

#include "base/descriptor.h"

#include <stdatomic.h>
#include <stdint.h>

#define RS_JOB_VARIABLE "RMMSHIM_JOB"

enum { RS_JOB_SLOTS = 64 };

/* What a slot's state says. */
enum rs_job_step {
    RS_JOB_FREE,    /* no process uses the slot */
    RS_JOB_OFFERED, /* the process has filled fd and inode, and waits */
    RS_JOB_HELD,    /* `run` has opened the file */
    RS_JOB_TAKEN    /* the process is filling fd and inode */
};

struct rs_job_slot {
    _Atomic uint32_t state; /* rs_job_state of the process that uses the slot; a futex */
    int32_t fd;             /* the published file in that process; valid from RS_JOB_OFFERED on */
    uint64_t inode;         /* of the published file */
};

struct rs_job {
    _Atomic uint32_t offers; /* number of offers so far; a futex that `run` waits on */
    struct rs_job_slot slots[RS_JOB_SLOTS];
};

static inline uint32_t rs_job_state(int process, enum rs_job_step step)
{
    return (uint32_t)process << 2 | (uint32_t)step;
}

static inline int rs_job_process(uint32_t state)
{
    return (int)(state >> 2);
}

static inline enum rs_job_step rs_job_step(uint32_t state)
{
    return (enum rs_job_step)(state & 3);
}

/* Offers this process's file in the job's memory file, and waits until `run` holds it; so a process
 * that ends right away loses nothing.  The wait ends when `run` is gone, and after 10 s: it may be
 * stopped.  Returns true when it is held. */
bool rs_job_offer(const struct rs_kept_descriptor *file);

/* Futex calls that work across processes.  rs_job_wait returns when the word is not `seen`, after
 * a wake, or after wait_ns at most; rs_job_wake wakes all waiters. */
void rs_job_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns);
void rs_job_wake(_Atomic uint32_t *word);
