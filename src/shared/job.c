/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/job.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/process.h"
#include "base/undisturbed.h"
#include "shared/other_file.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A busy machine may not let `run` look at an offer for long. */
static const uint64_t longest_wait_ns = 10ull * 1000 * 1000 * 1000;

enum {
    LOOK_NS = 100 * 1000 * 1000, /* between two looks whether `run` is there */
    NAP_NS = 1000 * 1000,        /* between two looks for a free slot */
};

void rs_job_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns)
{
    struct timespec wait = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};

    if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &wait, NULL, 0) != 0 && errno == ETIMEDOUT)
        rs_clock_note_slept(wait_ns);
}

void rs_job_wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool is_there(const char *where)
{
    int fd = rs_other_file_open_named(where);

    if (fd >= 0)
        rs_file_close(fd);
    return fd >= 0;
}

static struct rs_job *map_job(const char *where)
{
    int fd = rs_other_file_open_named(where);
    struct stat status;
    void *job = MAP_FAILED;

    if (fd < 0)
        return NULL;
    if (fstat(fd, &status) == 0 && status.st_size >= (off_t)sizeof(struct rs_job))
        job = mmap(NULL, sizeof(struct rs_job), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rs_file_close(fd);
    return job == MAP_FAILED ? NULL : job;
}

static struct rs_job_slot *take_free_slot(struct rs_job *job)
{
    for (int i = 0; i < RS_JOB_SLOTS; i++) {
        uint32_t free_state = 0;
        if (atomic_compare_exchange_strong(&job->slots[i].state, &free_state,
                                           rs_job_state(getpid(), RS_JOB_TAKEN)))
            return &job->slots[i];
    }
    return NULL;
}

/* More processes may begin at the same time than there are slots. */
static struct rs_job_slot *take_slot(struct rs_job *job, const char *where, uint64_t until_ns)
{
    struct rs_job_slot *slot;

    while (!(slot = take_free_slot(job)) && rs_clock_ns() < until_ns && is_there(where))
        rs_nap(NAP_NS);
    return slot;
}

/* Frees the slot, and returns whether the offer in it was accepted.  A slot whose offer was refused
 * may be another process's by now, and stays. */
static bool gives_back_held(struct rs_job_slot *slot, uint32_t offered)
{
    uint32_t held = rs_job_state(getpid(), RS_JOB_HELD);

    return !atomic_compare_exchange_strong(&slot->state, &offered, 0) &&
           atomic_compare_exchange_strong(&slot->state, &held, 0);
}

static bool is_held_in_time(struct rs_job_slot *slot, const char *where, uint64_t until_ns)
{
    uint32_t offered = rs_job_state(getpid(), RS_JOB_OFFERED);

    while (atomic_load(&slot->state) == offered && rs_clock_ns() < until_ns && is_there(where))
        rs_job_wait(&slot->state, offered, LOOK_NS);
    return gives_back_held(slot, offered);
}

static bool offer(struct rs_job *job, const char *where, const struct rs_kept_descriptor *file)
{
    uint64_t until_ns = rs_clock_ns() + longest_wait_ns;
    struct rs_job_slot *slot = take_slot(job, where, until_ns);
    uint32_t taken = rs_job_state(getpid(), RS_JOB_TAKEN);

    if (!slot)
        return false;
    slot->fd = file->fd;
    slot->inode = file->inode;
    if (!atomic_compare_exchange_strong(&slot->state, &taken,
                                        rs_job_state(getpid(), RS_JOB_OFFERED)))
        return false; /* every process of the job may write here */
    atomic_fetch_add(&job->offers, 1);
    rs_job_wake(&job->offers);
    return is_held_in_time(slot, where, until_ns);
}

bool rs_job_offer(const struct rs_kept_descriptor *file)
{
    const char *where = rs_environment_get(RS_JOB_VARIABLE);
    struct rs_uncancelled uncancelled;
    struct rs_job *job;
    bool is_held = false;

    if (!where)
        return false;
    rs_uncancelled_begin(&uncancelled);
    job = map_job(where);
    if (job) {
        is_held = offer(job, where, file);
        munmap(job, sizeof(*job));
    }
    rs_uncancelled_end(&uncancelled);
    return is_held;
}
