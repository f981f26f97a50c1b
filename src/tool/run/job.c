/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/job.h"

#include "base/arithmetic.h"
#include "base/file.h"
#include "shared/job.h"
#include "shared/published.h"
#include "tool/process.h"
#include "tool/publication.h"
#include "tool/run/gone.h"
#include "tool/run/limit_job.h"
#include "tool/run/shared_file.h"
#include "tool/run/unserved.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOK_NS = 1000 * 1000 * 1000 }; /* how often it is looked who is gone, at least */

/* A process whose file is held. */
struct held {
    struct held *next;
    int process;
    int directory; /* of the process in /proc: never that of another one of its number */
    void *file;
};

static struct rs_job *job;
static struct held *all_held; /* of the thread, and when it has ended of job_end */
static pthread_t thread;
static bool is_watching;
static struct summary summary; /* as all_held */
static _Atomic bool is_over;

/* ---- processes ---- */

static int open_process(int process)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d", process);
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* ---- holding ---- */

static bool is_ours(int fd, uint64_t inode)
{
    struct stat status;

    return fstat(fd, &status) == 0 && (uint64_t)status.st_ino == inode &&
           status.st_size == RS_PUBLISHED_BYTES && rs_file_cannot_shrink(fd);
}

static void *map_offered(int directory, const struct rs_job_slot *slot)
{
    char path[32];
    void *file = MAP_FAILED;
    int fd;

    snprintf(path, sizeof(path), "fd/%d", (int)slot->fd);
    fd = openat(directory, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return NULL;
    if (is_ours(fd, slot->inode))
        file = mmap(NULL, RS_PUBLISHED_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (file != MAP_FAILED && publication_can_read(file))
        return file;
    if (file != MAP_FAILED)
        munmap(file, RS_PUBLISHED_BYTES);
    return NULL;
}

static void let_go(struct held *held)
{
    if (held->file)
        munmap(held->file, RS_PUBLISHED_BYTES);
    if (held->directory >= 0)
        close(held->directory);
    free(held);
}

static struct held *hold(int process, const struct rs_job_slot *slot)
{
    struct held *held = calloc(1, sizeof(*held));

    if (!held)
        return NULL;
    held->process = process;
    held->directory = open_process(process);
    if (held->directory >= 0)
        held->file = map_offered(held->directory, slot);
    if (held->file)
        return held;
    let_go(held);
    return NULL;
}

/* The process may have given up meanwhile, and then the slot may be another's. */
static void take_offer(struct rs_job_slot *slot, uint32_t state)
{
    int process = rs_job_process(state);
    struct held *held = hold(process, slot);
    uint32_t answer = held ? rs_job_state(process, RS_JOB_HELD) : 0;

    if (atomic_compare_exchange_strong(&slot->state, &state, answer) && held) {
        held->next = all_held;
        all_held = held;
        unserved_forget(process);
    } else if (held) {
        let_go(held);
    }
    rs_job_wake(&slot->state);
}

/* Of a process that ended between taking the slot and giving it back. */
static void free_left_slot(struct rs_job_slot *slot, uint32_t state)
{
    int directory = open_process(rs_job_process(state));

    if (directory < 0 || process_directory_has_ended(directory))
        atomic_compare_exchange_strong(&slot->state, &state, 0);
    if (directory >= 0)
        close(directory);
}

static void look_at_slots(void)
{
    for (int i = 0; i < RS_JOB_SLOTS; i++) {
        struct rs_job_slot *slot = &job->slots[i];
        uint32_t state = atomic_load(&slot->state);
        if (rs_job_step(state) == RS_JOB_OFFERED)
            take_offer(slot, state);
        else if (state)
            free_left_slot(slot, state);
    }
}

static void report_gone(void)
{
    struct held **at = &all_held;

    while (*at) {
        struct held *held = *at;
        if (!process_directory_has_ended(held->directory)) {
            at = &held->next;
            continue;
        }
        *at = held->next;
        gone_report(held->file);
        summary_add(&summary, held->process, true, held->file);
        gone_keep_refusal(held->file);
        let_go(held);
    }
}

static bool is_held(int process)
{
    const struct held *held = all_held;

    while (held && held->process != process)
        held = held->next;
    return held;
}

static void *watch(void *data)
{
    uint64_t wait_ns;

    (void)data;
    while (!atomic_load(&is_over)) {
        uint32_t seen = atomic_load(&job->offers);
        look_at_slots();
        report_gone();
        limit_job_look();
        wait_ns = rs_min(unserved_look(is_held), (size_t)LOOK_NS);
        if (!atomic_load(&is_over))
            rs_job_wait(&job->offers, seen, wait_ns);
    }
    return NULL;
}

/* ---- the job ---- */

bool job_begin(void)
{
    job = shared_file_make("rmmshim-job", sizeof(*job), RS_JOB_VARIABLE);
    if (!job)
        tool_say("reports are lost of processes that do not end by exit(): %s", strerror(errno));
    return job != NULL;
}

void job_watch(void)
{
    summary_clear(&summary);
    gone_forget_refusals();
    unserved_begin();
    atomic_store(&is_over, false);
    is_watching = job && pthread_create(&thread, NULL, watch, NULL) == 0;
    summary.is_short = !is_watching;
}

void job_end(void)
{
    if (!is_watching)
        return;
    atomic_store(&is_over, true);
    atomic_fetch_add(&job->offers, 1);
    rs_job_wake(&job->offers);
    pthread_join(thread, NULL);
    look_at_slots();
    report_gone();
    for (const struct held *held = all_held; held; held = held->next)
        summary_add(&summary, held->process, false, held->file);
}

void job_take_summary(struct summary *taken)
{
    *taken = summary;
    taken->unserved = unserved_take(&taken->unserved_count);
    taken->is_short |= !taken->unserved;
    summary = (struct summary){.count = 0};
}
