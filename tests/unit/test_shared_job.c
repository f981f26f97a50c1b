/* SPDX-License-Identifier: Apache-2.0 */
/* The offer to a `run`: what becomes of the slot, which other processes write too. */
#include "unit.h"

#include "flying_clock.h"
#include "shared/job.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ANOTHER = 4711 }; /* a process */

static struct rs_job *job;
static int fd;

static int set_up(void **state)
{
    struct stat status;
    char where[64];

    (void)state;
    fd = memfd_create("job", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(*job)) != 0 || fstat(fd, &status) != 0)
        return -1;
    job = mmap(NULL, sizeof(*job), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    snprintf(where, sizeof(where), "%d:%d:%llu", (int)getpid(), fd,
             (unsigned long long)status.st_ino);
    return job == MAP_FAILED ? -1 : setenv(RS_JOB_VARIABLE, where, 1);
}

static int tear_down(void **state)
{
    (void)state;
    munmap(job, sizeof(*job));
    return fd < 0 ? 0 : close(fd);
}

FIXTURE(set_up, tear_down);

/* Writes the state *data into the first slot as soon as it is offered. */
static void *answer(void *data)
{
    struct rs_job_slot *slot = &job->slots[0];
    const uint32_t *state = data;

    while (atomic_load(&slot->state) != rs_job_state(getpid(), RS_JOB_OFFERED))
        sched_yield();
    atomic_store(&slot->state, *state);
    rs_job_wake(&slot->state);
    return NULL;
}

/* Offers a file and returns whether it is held, when the slot is answered so. */
static bool offered(uint32_t state)
{
    const struct rs_kept_descriptor file = {.fd = 500, .inode = 12};
    pthread_t thread;
    bool is_held;

    atomic_store(&clock_stands, true); /* the answer comes in time, however late that is */
    assert_int_equal(pthread_create(&thread, NULL, answer, &state), 0);
    is_held = rs_job_offer(&file);
    atomic_store(&clock_stands, false);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&job->offers), 1);
    assert_int_equal(job->slots[0].fd, 500);
    assert_int_equal(job->slots[0].inode, 12);
    return is_held;
}

TEST(a_held_file_s_slot_is_free_again)
{
    assert_true(offered(rs_job_state(getpid(), RS_JOB_HELD)));
    assert_int_equal(atomic_load(&job->slots[0].state), 0);
}

TEST(a_refused_file_s_slot_may_be_another_process_s)
{
    uint32_t taken = rs_job_state(ANOTHER, RS_JOB_TAKEN);

    assert_false(offered(taken));
    assert_int_equal(atomic_load(&job->slots[0].state), taken);
}

/* How often the job's file is mapped here. */
static int mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps))
        count += strstr(line, "/memfd:job ") != NULL;
    (void)fclose(maps);
    return count;
}

/* Closes the job's file, as the end of `run` does, when another thread is about to offer. */
static void *end_run(void *data)
{
    while (mappings() < 2)
        sched_yield();
    close(fd);
    fd = -1;
    return data;
}

/* Offers a file to a `run` that never looks, and then is gone. */
static void offer_in_vain(void)
{
    const struct rs_kept_descriptor file = {.fd = 500, .inode = 12};
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, end_run, NULL), 0);
    assert_false(rs_job_offer(&file));
    pthread_join(thread, NULL);
}

TEST(an_offer_that_nobody_answers_is_withdrawn)
{
    offer_in_vain();
    assert_int_equal(atomic_load(&job->offers), 1);
    assert_int_equal(atomic_load(&job->slots[0].state), 0);
}

TEST(without_a_free_slot_nothing_is_offered)
{
    for (int i = 0; i < RS_JOB_SLOTS; i++)
        atomic_store(&job->slots[i].state, rs_job_state(ANOTHER, RS_JOB_OFFERED));
    offer_in_vain();
    assert_int_equal(atomic_load(&job->offers), 0);
}

/* Frees the last slot when another thread is about to offer, and answers the offer there. */
static void *free_a_slot(void *data)
{
    struct rs_job_slot *slot = &job->slots[RS_JOB_SLOTS - 1];

    while (mappings() < 2)
        sched_yield();
    atomic_store(&slot->state, 0);
    while (atomic_load(&slot->state) != rs_job_state(getpid(), RS_JOB_OFFERED))
        sched_yield();
    atomic_store(&slot->state, rs_job_state(getpid(), RS_JOB_HELD));
    rs_job_wake(&slot->state);
    return data;
}

TEST(who_finds_no_free_slot_waits_for_one)
{
    const struct rs_kept_descriptor file = {.fd = 500, .inode = 12};
    pthread_t thread;

    for (int i = 0; i < RS_JOB_SLOTS; i++)
        atomic_store(&job->slots[i].state, rs_job_state(ANOTHER, RS_JOB_OFFERED));
    assert_int_equal(pthread_create(&thread, NULL, free_a_slot, NULL), 0);
    assert_true(rs_job_offer(&file));
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&job->slots[RS_JOB_SLOTS - 1].state), 0);
}
