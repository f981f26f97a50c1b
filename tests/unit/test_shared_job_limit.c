/* SPDX-License-Identifier: Apache-2.0 */
/* The limit over a job: processes that take, give back and die never have more than the limit. */
#include "unit.h"

#include "folder.h"
#include "shared/job_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

enum { LIMIT = 1000, PROCESSES = 12, ROUNDS = 3000 };

static const unsigned char first_uuid[RS_JOB_UUID_BYTES] = "first device";
static const unsigned char other_uuid[RS_JOB_UUID_BYTES] = "other device";

/* Memory that is not mapped for one process alone. */
static void *shared_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(memory, MAP_FAILED);
    return memory;
}

static struct rs_job_limit *new_job(void)
{
    struct rs_job_limit *job = shared_memory(sizeof(*job));

    rs_job_limit_init(job);
    return job;
}

static struct rs_job_share share_of(struct rs_job_limit *job, const unsigned char *uuid,
                                    size_t limit_bytes)
{
    struct rs_job_share share = {.job = job,
                                 .member = rs_job_limit_join(job),
                                 .device = (unsigned)rs_job_limit_device(job, uuid),
                                 .limit_bytes = limit_bytes};

    assert_non_null(share.member);
    return share;
}

TEST(members_share_the_limit_of_a_device)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);
    struct rs_job_share far = share_of(job, other_uuid, LIMIT);

    assert_true(rs_job_share_take(&one, 600));
    assert_false(rs_job_share_take(&two, 401));
    assert_true(rs_job_share_take(&two, 400));
    assert_false(rs_job_share_take(&one, 1));
    assert_int_equal(rs_job_share_others(&one), 400);
    assert_true(rs_job_share_take(&far, LIMIT)); /* of another device */
    rs_job_share_add(&two, (size_t)-150);
    assert_true(rs_job_share_take(&one, 150));
    assert_false(rs_job_share_take(&one, LIMIT + 1));
}

TEST(a_device_has_one_number)
{
    struct rs_job_limit *job = new_job();
    unsigned char uuid[RS_JOB_UUID_BYTES] = {0};

    assert_int_equal(rs_job_limit_device(job, first_uuid), 0);
    assert_int_equal(rs_job_limit_device(job, other_uuid), 1);
    assert_int_equal(rs_job_limit_device(job, first_uuid), 0);
    for (unsigned char i = 2; i < RS_JOB_DEVICES; i++) {
        uuid[0] = i;
        assert_int_equal(rs_job_limit_device(job, uuid), i);
    }
    uuid[0] = RS_JOB_DEVICES;
    assert_int_equal(rs_job_limit_device(job, uuid), -1);
}

/* ---- many processes ---- */

/* What each process really has: raised after a successful request, lowered before bytes are given
 * back, so their sum is never more than what the job has counted. */
struct reality {
    _Atomic uint64_t had, most, served;
};

static void raise_most(struct reality *reality, uint64_t had)
{
    uint64_t most = atomic_load(&reality->most);

    while (had > most && !atomic_compare_exchange_weak(&reality->most, &most, had))
        ;
}

static uint32_t next_number(uint32_t *seed)
{
    return *seed = *seed * 1664525u + 1013904223u;
}

static void live(struct rs_job_limit *job, struct reality *reality, uint32_t seed)
{
    struct rs_job_share share = share_of(job, first_uuid, LIMIT);
    uint64_t held[64];
    unsigned count = 0;

    for (int i = 0; i < ROUNDS; i++) {
        uint64_t bytes = 1 + next_number(&seed) % 300;
        if (count == 64 || (count && next_number(&seed) >> 31)) {
            bytes = held[--count];
            atomic_fetch_sub(&reality->had, bytes);
            rs_job_share_add(&share, (size_t)-bytes);
        } else if (rs_job_share_take(&share, (size_t)bytes)) {
            held[count++] = bytes;
            atomic_fetch_add(&reality->served, 1);
            raise_most(reality, atomic_fetch_add(&reality->had, bytes) + bytes);
        }
    }
    while (count > 0) {
        atomic_fetch_sub(&reality->had, held[--count]);
        rs_job_share_add(&share, (size_t)-held[count]);
    }
}

TEST(never_more_than_the_limit)
{
    struct rs_job_limit *job = new_job();
    struct reality *reality = shared_memory(sizeof(*reality));
    int status;

    for (uint32_t i = 0; i < PROCESSES; i++)
        if (fork() == 0) {
            live(job, reality, i);
            _exit(0);
        }
    for (int i = 0; i < PROCESSES; i++)
        assert_true(wait(&status) > 0 && status == 0);
    assert_int_equal(reality->had, 0);
    assert_true(reality->most <= LIMIT);
    assert_true(reality->most > LIMIT / 2); /* the limit was reached at all */
    assert_true(reality->served > PROCESSES * ROUNDS / 8);
    (void)rs_job_limit_reap(job);
    assert_int_equal(job->members[0].owner, 0); /* they have ended with nothing */
}

/* ---- processes that die ---- */

/* qemu-user makes up what /proc/self/stat says, so that others do not know this process again. The
 * start time that it makes up can be right by chance; the size of memory, field 23, it makes 0. */
static bool knows_itself(void)
{
    char stat[1024] = "";
    const char *field;
    int fd = open("/proc/self/stat", O_RDONLY);

    assert_true(fd >= 0 && read(fd, stat, sizeof(stat) - 1) > 0);
    close(fd);
    field = strrchr(stat, ')');
    for (int i = 2; field && i < 23; i++)
        field = strchr(field + 1, ' ');
    assert_non_null(field);
    if (strtoull(field, NULL, 10) > 0)
        return true;
    print_message("left out: /proc does not know this process\n");
    return false;
}

/* No process outlives its test. */
static pid_t fork_bound(void)
{
    pid_t process = fork();

    if (process == 0)
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    return process;
}

/* A process that takes bytes and is killed while it holds them. */
static pid_t take_and_wait(struct rs_job_limit *job, uint64_t bytes)
{
    int ready[2];
    char byte;
    pid_t process;

    assert_int_equal(pipe(ready), 0);
    process = fork_bound();
    if (process == 0) {
        struct rs_job_share share = share_of(job, first_uuid, LIMIT);
        bool taken = rs_job_share_take(&share, (size_t)bytes);
        (void)!write(ready[1], taken ? "y" : "n", 1);
        for (;;)
            pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    close(ready[0]);
    close(ready[1]);
    return process;
}

static void kill_and_wait(pid_t process)
{
    int status;

    kill(process, SIGKILL);
    assert_int_equal(waitpid(process, &status, 0), process);
}

TEST(the_dead_are_counted_until_the_device_has_closed)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    pid_t process;

    if (!knows_itself())
        return;
    process = take_and_wait(job, 700);

    assert_false(rs_job_limit_reap(job)); /* nobody is gone */
    assert_int_equal(rs_job_share_others(&own), 700);
    kill_and_wait(process);
    assert_true(rs_job_limit_reap(job));
    assert_int_equal(rs_job_share_others(&own), 700);
    assert_false(rs_job_share_take(&own, 400));
    while (rs_job_limit_reap(job)) /* for RS_JOB_LIMIT_SETTLE_MS */
        ;
    assert_int_equal(rs_job_share_others(&own), 0);
    assert_true(rs_job_share_take(&own, LIMIT));
}

TEST(a_place_that_comes_back_is_settled_anew)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    pid_t process;

    if (!knows_itself())
        return;
    process = take_and_wait(job, 10);

    kill_and_wait(process);
    while (rs_job_limit_reap(job))
        ;
    process = take_and_wait(job, 20);
    kill_and_wait(process);
    assert_true(rs_job_limit_reap(job)); /* not at once, though the place noted an earlier end */
    assert_int_equal(rs_job_share_others(&own), 20);
}

static void *wait_for_ever(void *data)
{
    (void)!write(*(int *)data, "y", 1);
    for (;;)
        pause();
    return NULL;
}

TEST(a_process_whose_first_thread_has_ended_lives)
{
    struct rs_job_limit *job = new_job();
    static int ready[2]; /* the first thread's stack ends before the other thread */
    char byte, path[64], stat[256] = "";
    pid_t process;

    if (!knows_itself())
        return;
    assert_int_equal(pipe(ready), 0);
    process = fork_bound();
    if (process == 0) {
        pthread_t thread;
        (void)!rs_job_share_take(&(struct rs_job_share){job, rs_job_limit_join(job), 0, LIMIT},
                                 300);
        (void)pthread_create(&thread, NULL, wait_for_ever, &ready[1]);
        pthread_exit(NULL);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
    while (!strstr(stat, ") Z ")) { /* its first thread is about to end */
        int fd = open(path, O_RDONLY);
        memset(stat, 0, sizeof(stat));
        assert_true(fd >= 0 && read(fd, stat, sizeof(stat) - 1) > 0);
        close(fd);
    }
    assert_false(rs_job_limit_reap(job));
    assert_int_equal(job->members[0].taken_bytes[0], 300);
    kill_and_wait(process);
    assert_true(rs_job_limit_reap(job));
}

TEST(another_process_of_that_number_is_another)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);

    /* As if this process's number had been another's, who began at another time. */
    job->members[5].owner = (job->members[0].owner & ~(uint64_t)0xffffffff) | 1;
    job->members[5].taken_bytes[0] = 300;
    job->members_used = 6;
    assert_int_equal(rs_job_share_others(&own), 300);
    assert_true(rs_job_limit_reap(job));
}

/* ---- the file ---- */

TEST(files_that_are_no_jobs_are_refused)
{
    const char *path = "job";
    char where[64];
    struct rs_job_limit *job, *again;
    struct stat status;
    int fd;

    assert_int_equal(rs_job_limit_open(NULL, path, &job), 0);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_int_equal(rs_job_limit_open(NULL, path, &again), 0);
    job->members[3].taken_bytes[1] = 7;
    assert_int_equal(again->members[3].taken_bytes[1], 7);

    fd = open(path, O_RDWR);
    snprintf(where, sizeof(where), "%d:%d:%llu", (int)getpid(), fd,
             (unsigned long long)status.st_ino);
    assert_int_equal(rs_job_limit_open(where, NULL, &again), 0);
    snprintf(where, sizeof(where), "%d:%d:%llu", (int)getpid(), fd,
             (unsigned long long)status.st_ino + 1);
    assert_int_equal(rs_job_limit_open(where, NULL, &again), -ESTALE);
    assert_int_equal(rs_job_limit_open("nonsense", NULL, &again), -EINVAL);
    close(fd);

    job->layout[0] = 'R';
    assert_int_equal(rs_job_limit_open(NULL, path, &again), -EPROTO);
    job->layout[0] = 'r';
    assert_int_equal(chmod(path, 0660), 0);
    assert_int_equal(rs_job_limit_open(NULL, path, &again), -EACCES);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(rs_job_limit_open(NULL, path, &again), -EPROTO);
}
