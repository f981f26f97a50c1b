/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/job_mutex.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/log.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NS_PER_MS = 1000 * 1000, TRIES_AT_ONCE = 64 };

uint64_t job_now_ms(void)
{
    return rs_clock_ns() / NS_PER_MS;
}

/* Late bytes that come meanwhile say so anew. */
void job_make_total(struct rs_job_limit *job, uint32_t number)
{
    uint64_t bytes = 0;

    atomic_store(&job->devices[number].is_late, 0);
    FOR_EACH_SHARER(entry, job, number)
    bytes += bytes_of(entry) + get(&entry->kept_bytes);
    set(&job->devices[number].total_bytes, bytes);
}

/* Whatever an owner did before it died, its entries are right, or those of a process that is gone.
 */
bool job_try_lock(struct rs_job_limit *job)
{
    int failed = pthread_mutex_trylock(&job->mutex);

    if (failed == EOWNERDEAD) {
        for (uint32_t i = 0; i < RS_JOB_DEVICES; i++)
            job_make_total(job, i);
        failed = pthread_mutex_consistent(&job->mutex);
    }
    if (failed)
        return false;
    atomic_fetch_add(&job->turns, 1);
    return true;
}

void job_unlock(struct rs_job_limit *job)
{
    int failed = pthread_mutex_unlock(&job->mutex);

    RS_ASSERT(!failed);
    (void)failed;
}

bool job_read_proc(pid_t process, const char *name, char text[1024])
{
    char path[64];
    ssize_t length = -1;
    int fd;

    snprintf(path, sizeof(path), "/proc/%d/%s", (int)process, name);
    fd = rs_file_open(path);
    if (fd >= 0) {
        length = rs_file_read(fd, text, 1023, 0);
        rs_file_close(fd);
    }
    text[rs_max(length, 0)] = '\0';
    return length > 0;
}

/* Of the thread with this number, where it could run. */
static bool can_run(pid_t thread)
{
    char text[1024];
    const char *name_end = job_read_proc(thread, "stat", text) ? strrchr(text, ')') : NULL;

    return name_end && strncmp(name_end, ") R", 3) == 0;
}

static int process_of(pid_t thread)
{
    char text[1024];
    const char *at = job_read_proc(thread, "status", text) ? strstr(text, "\nTgid:") : NULL;
    int process;

    return at && sscanf(at, "\nTgid: %d", &process) == 1 ? process : (int)thread;
}

/* An owner that could run may have no processor. */
bool job_is_stuck(struct rs_job_limit *job, struct job_patience *patience)
{
    static _Atomic uint64_t stuck;
    /* As the kernel needs it to see that the owner dies. */
    pid_t owner = (pid_t)((uint32_t)__atomic_load_n(&job->mutex.__data.__lock, __ATOMIC_RELAXED) &
                          FUTEX_TID_MASK);
    uint64_t now_ns = rs_clock_ns();
    uint64_t turn = (uint64_t)(uint32_t)owner << 32 | atomic_load(&job->turns);

    if (owner == 0)
        return false;
    if (owner == (pid_t)syscall(SYS_gettid) || turn == atomic_load(&stuck))
        return true;
    if (patience->turn != turn || can_run(owner))
        *patience = (struct job_patience){turn, now_ns};
    if (now_ns - patience->since_ns < (uint64_t)RS_JOB_LIMIT_STUCK_MS * NS_PER_MS)
        return false;
    if (atomic_exchange(&stuck, turn) != turn)
        rs_log("process %d holds the lock of the job's limit but does not run (is it stopped?): "
               "requests are refused until it continues",
               process_of(owner));
    return true;
}

bool job_lock(struct rs_job_limit *job, bool waits)
{
    struct job_patience patience = {0};

    for (unsigned turn = 0; !job_try_lock(job); turn++) {
        if (waits ? turn >= JOB_TRIES && job_is_stuck(job, &patience) : turn >= TRIES_AT_ONCE)
            return false;
        rs_pause(turn);
    }
    return true;
}
