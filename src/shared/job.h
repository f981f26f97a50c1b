/* SPDX-License-Identifier: Apache-2.0 */
/* How processes hand what they publish (shared/published.h) to the `rmmshim run` that they descend
 * from.  It has a memory file with a slot for each process that is about to; RMMSHIM_JOB says where
 * ("PID:DESCRIPTOR:INODE"), and /proc opens it.  Numbers are the processes' own: in another PID
 * namespace nothing is found, and nothing is handed over. */
#pragma once

#include "base/descriptor.h"

#include <stdatomic.h>
#include <stdint.h>

#define RS_JOB_VARIABLE "RMMSHIM_JOB"

enum { RS_JOB_SLOTS = 64, RS_JOB_WAIT_NS = 100 * 1000 * 1000 };

enum rs_job_step { RS_JOB_FREE, RS_JOB_OFFERED, RS_JOB_HELD, RS_JOB_TAKEN };

struct rs_job_slot {
    _Atomic uint32_t state; /* of a process: rs_job_state; the process waits for it to be held */
    int32_t fd;             /* of the file, in that process; valid when offered */
    uint64_t inode;
};

struct rs_job {
    _Atomic uint32_t offers; /* grows with each; `run` waits for it */
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

/* Offers the file of this process, and waits until it is held, RS_JOB_WAIT_NS at most: a process
 * that ends right away loses nothing.  True when it is held. */
bool rs_job_offer(const struct rs_kept_descriptor *file);

/* Waits while the word is `seen`, `wait_ns` at most; wakes those who do.  Across processes. */
void rs_job_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns);
void rs_job_wake(_Atomic uint32_t *word);
