/* SPDX-License-Identifier: Apache-2.0 */
/* The limit over a job: processes that take, give back and die never have more than the limit. */
#include "unit.h"

#include "base/process.h"
#include "flying_clock.h"
#include "folder.h"
#include "job_shares.h"
#include "shared/commands.h"
#include "until.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

/* Either name, as the program's offsets are. */
static int fallocate_error;

int __real_posix_fallocate(int fd, off_t offset, off_t length);
int __wrap_posix_fallocate(int fd, off_t offset, off_t length);
int __real_posix_fallocate64(int fd, off_t offset, off_t length);
int __wrap_posix_fallocate64(int fd, off_t offset, off_t length);

int __wrap_posix_fallocate(int fd, off_t offset, off_t length)
{
    return fallocate_error ? fallocate_error : __real_posix_fallocate(fd, offset, length);
}

int __wrap_posix_fallocate64(int fd, off_t offset, off_t length)
{
    return fallocate_error ? fallocate_error : __real_posix_fallocate64(fd, offset, length);
}

enum { PROCESSES = 12, SERVED = 600, CROWD = 256 };

static const unsigned char other_uuid[16] = "other device";

static int open_at(const char *path, struct rs_job_limit **job, struct rs_job_entry **member)
{
    struct rs_size limit = limit_size;

    return rs_job_limit_open(-1, path, &limit, job, member);
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

/* 8 GPUs in 7 parts each are 56 devices, and there are machines with more GPUs. */
TEST(one_process_has_more_than_a_hundred_devices)
{
    enum { MANY = 256 };
    struct rs_job_limit *job = new_job();
    struct rs_job_share shares[MANY + 1];
    struct rs_job_entry *member = rs_job_limit_join(job);

    for (uint32_t i = MANY + 1; i < RS_JOB_ENTRIES; i++)
        job->entries[i].owner = member->owner; /* of others */
    for (uint32_t i = 0; i <= MANY; i++) {
        shares[i] = (struct rs_job_share){.job = job, .member = member, .limit_bytes = LIMIT};
        memcpy(shares[i].uuid, &(uint32_t){i + 1}, sizeof(i));
        rs_job_share_enter(&shares[i]);
        assert_true(rs_job_share_take(&shares[i], LIMIT) == (i < MANY));
    }
    assert_false(rs_job_share_take(&shares[MANY], 1)); /* and that is said */
    assert_int_equal(rs_job_share_others(&shares[MANY]), 0);
    rs_job_share_set_idle(&shares[MANY], 1);
    assert_false(rs_job_share_take(&shares[7], 1));
    shares[7].entry->owner = 0; /* as when its member is gone */
    assert_true(rs_job_share_take(&shares[MANY], LIMIT));
}

/* ---- a job within a job ---- */

/* ---- many processes ---- */

/* What each process really has: raised after a successful request, lowered before bytes are given
 * back, so their sum is never more than what the job has counted. */
struct reality {
    _Atomic uint64_t had, most;
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

/* Until it was served so often; how often it is refused is up to the scheduler. */
static void live(struct rs_job_limit *job, struct reality *reality, uint32_t seed)
{
    struct rs_job_share share = share_of(job, first_uuid, LIMIT);
    uint64_t held[64];
    unsigned count = 0, served = 0;

    while (served < SERVED) {
        uint64_t bytes = 1 + next_number(&seed) % 300;
        if (count == 64 || (count && next_number(&seed) >> 31)) {
            bytes = held[--count];
            atomic_fetch_sub(&reality->had, bytes);
            rs_job_share_add(&share, (size_t)-bytes);
        } else if (rs_job_share_take(&share, (size_t)bytes)) {
            held[count++] = bytes;
            served++;
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
    assert_int_equal(total_in(job), 0);
    (void)rs_job_limit_reap(job);
    assert_int_equal(job->entries[0].owner, 0); /* they have ended with nothing */
}

/* ---- processes that die ---- */

int unit_prepare(int argc, char **argv)
{
    (void)argc, (void)argv;
    return skip_without_robust_mutexes();
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

/* Time does not pass but by let_settle. */
static int stop_clock(void **state)
{
    (void)state;
    atomic_store(&clock_stands, true);
    return 0;
}

static int start_clock(void **state)
{
    (void)state;
    atomic_store(&clock_stands, false);
    return 0;
}

/* The bytes of the dead are counted for RS_JOB_LIMIT_SETTLE_MS, and then no more. */
static void let_settle(struct rs_job_limit *job)
{
    atomic_fetch_add(&clock_ahead_ns, (RS_JOB_LIMIT_SETTLE_MS - 1) * 1000000ull);
    assert_true(rs_job_limit_reap(job));
    atomic_fetch_add(&clock_ahead_ns, 1000000);
    assert_false(rs_job_limit_reap(job));
}

static void kill_and_wait(pid_t process)
{
    int status;

    kill(process, SIGKILL);
    assert_int_equal(waitpid(process, &status, 0), process);
}

TEST_WITH(stop_clock, start_clock, the_dead_are_counted_until_the_device_has_closed)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    struct rs_job_share far = share_of(job, other_uuid, LIMIT);
    pid_t process;

    process = take_and_wait(job, 700);

    assert_false(rs_job_limit_reap(job)); /* nobody is gone */
    assert_int_equal(rs_job_share_others(&own), 700);
    kill_and_wait(process);
    assert_true(rs_job_share_reap(&own));
    assert_false(rs_job_share_reap(&far)); /* nothing comes back there */
    assert_int_equal(rs_job_share_others(&own), 700);
    assert_false(rs_job_share_take(&own, 400));
    let_settle(job);
    assert_int_equal(rs_job_share_others(&own), 0);
    assert_true(rs_job_share_take(&own, LIMIT));
}

TEST_WITH(stop_clock, start_clock, a_place_that_comes_back_is_settled_anew)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    pid_t process;

    process = take_and_wait(job, 10);

    kill_and_wait(process);
    assert_true(rs_job_limit_reap(job));
    let_settle(job);
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

    assert_int_equal(pipe(ready), 0);
    process = fork_bound();
    if (process == 0) {
        struct rs_job_share share = share_of(job, first_uuid, LIMIT);
        pthread_t thread;
        (void)!rs_job_share_take(&share, 300);
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
    assert_int_equal(total_in(job), 300);
    kill_and_wait(process);
    assert_true(rs_job_limit_reap(job));
}

TEST(another_process_of_that_number_is_another)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    struct rs_job_share other = share_of(job, first_uuid, LIMIT);

    /* As if this process's number had been another's, who began at another time. */
    other.member->owner = (own.member->owner & ~(uint64_t)0xffffffff) | 1;
    other.entry->owner = other.member->owner;
    assert_true(rs_job_share_take(&other, 300));
    assert_int_equal(rs_job_share_others(&own), 300);
    assert_true(rs_job_limit_reap(job));
}

/* A program keeps its number and its start time when it becomes another one, but not its memory. */
TEST_WITH(stop_clock, start_clock, what_a_program_had_before_it_became_another_is_the_dead_s)
{
    struct rs_job_limit *job, *again;
    struct rs_job_share had = {.limit_bytes = LIMIT}, own = had;

    assert_int_equal(open_at("became", &job, &had.member), 0);
    had.job = job;
    assert_true(rs_job_share_take(&had, 700));
    assert_int_equal(open_at("became", &again, &own.member), 0);
    own.job = again;
    rs_job_share_enter(&own);
    assert_int_equal(rs_job_share_others(&own), 700); /* the device may not have closed yet */
    assert_true(rs_job_limit_reap(job));
    let_settle(job);
    assert_int_equal(rs_job_share_others(&own), 0);
    assert_int_equal(had.entry->owner, 0);
    assert_true(own.member->owner != 0);
}

/* As when a process has no descriptor left to read /proc by. */
TEST(a_process_that_proc_does_not_tell_of_is_not_gone)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    struct rlimit limit;
    rlim_t before;
    pid_t process;

    process = take_and_wait(job, 700);

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    before = limit.rlim_cur;
    limit.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_false(rs_job_limit_reap(job));
    limit.rlim_cur = before;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rs_job_share_others(&own), 700);
    kill_and_wait(process);
    assert_true(rs_job_limit_reap(job));
}

/* ---- what happens to who has the mutex ---- */

/* What processes tell each other. */
struct signs {
    _Atomic bool is_in, may_go;
};

/* A child that has the mutex, and does so. */
static pid_t have_the_mutex(struct rs_job_limit *job, struct signs *signs,
                            void (*with)(struct rs_job_limit *job, struct signs *signs))
{
    pid_t process = fork_bound();

    if (process == 0) {
        if (job_lock(job, true))
            atomic_store(&signs->is_in, true);
        with(job, signs);
        job_unlock(job);
        _exit(0);
    }
    assert_true(UNTIL(atomic_load(&signs->is_in)));
    return process;
}

static void die(struct rs_job_limit *job, struct signs *signs)
{
    (void)signs;
    job->entries[1].taken_bytes += 300; /* of the first share, and it does not come to have them */
    raise(SIGKILL);
}

TEST(who_dies_with_the_mutex_leaves_right_sums)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);
    pid_t process;

    assert_true(rs_job_share_take(&one, 100));
    assert_true(rs_job_share_take(&two, 200));
    process = have_the_mutex(job, shared_memory(sizeof(struct signs)), die);
    assert_int_equal(waitpid(process, NULL, 0), process);
    assert_false(rs_job_share_take(&two, 401));
    assert_int_equal(rs_job_share_others(&two), 400);
    assert_true(rs_job_share_take(&two, 400));
    assert_int_equal(total_in(job), LIMIT);
}

static void stop(struct rs_job_limit *job, struct signs *signs)
{
    (void)job, (void)signs;
    raise(SIGSTOP);
}

static bool is_stopped(pid_t process)
{
    siginfo_t info = {0};

    return waitid(P_PID, (id_t)process, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == process;
}

/* What is given back is not lost, nor what the driver has taken. */
TEST_WITH(stop_clock, start_clock, who_is_stopped_with_the_mutex_hangs_nobody)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);
    uint64_t begin_ns;
    pid_t process;
    int status;

    assert_true(rs_job_share_take(&one, 600));
    process = have_the_mutex(job, shared_memory(sizeof(struct signs)), stop);
    assert_true(UNTIL(is_stopped(process)));
    begin_ns = atomic_load(&clock_ahead_ns);
    rs_job_share_add(&one, (size_t)-250);
    rs_job_share_add(&two, 50);
    assert_int_equal(atomic_load(&clock_ahead_ns), begin_ns); /* nor is the clock asked */
    atomic_store(&clock_step_ns, 50 * 1000000ull);
    assert_false(rs_job_share_take(&two, 10));
    assert_true(atomic_load(&clock_ahead_ns) - begin_ns >= RS_JOB_LIMIT_STUCK_MS * 1000000ull);
    begin_ns = atomic_load(&clock_ahead_ns);
    assert_false(rs_job_share_take(&two, 10)); /* at once */
    assert_true(atomic_load(&clock_ahead_ns) - begin_ns < RS_JOB_LIMIT_STUCK_MS * 1000000ull);
    atomic_store(&clock_step_ns, 0);
    assert_int_equal(kill(process, SIGCONT), 0);
    assert_int_equal(waitpid(process, &status, 0), process);
    assert_int_equal(status, 0);
    assert_int_equal(rs_job_share_others(&two), 350);
    assert_false(rs_job_share_take(&two, 601));
    assert_true(rs_job_share_take(&two, 600));
}

/* It has used a tenth of a second of its processor, however long that took. */
static void work(struct rs_job_limit *job, struct signs *signs)
{
    (void)job, (void)signs;
    while (clock() < CLOCKS_PER_SEC / 10)
        ;
}

TEST_WITH(stop_clock, start_clock, who_has_no_processor_is_waited_for)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    pid_t process;

    process = have_the_mutex(job, shared_memory(sizeof(struct signs)), work);
    atomic_store(&clock_step_ns, SECOND_NS / 2); /* each look at the clock takes so long */
    assert_true(rs_job_share_take(&own, LIMIT));
    atomic_store(&clock_step_ns, 0);
    assert_int_equal(waitpid(process, NULL, 0), process);
}

/* The child has neither the mutex nor the memory, and ends it for nobody. */
TEST(a_fork_within_the_mutex_leaves_it_to_the_parent)
{
    struct rs_job_limit *job, *again;
    struct rs_job_entry *member, *other;
    struct rs_job_share own = {.limit_bytes = LIMIT};
    int status;

    assert_int_equal(open_at("forks", &job, &member), 0);
    own.job = job;
    own.member = member;
    assert_true(rs_job_share_take(&own, 600));
    assert_true(job_lock(job, true));
    for (int joins = 0; joins < 2; joins++) {
        pid_t child = fork_bound();
        if (child == 0) {
            atomic_store(&clock_step_ns, SECOND_NS / 10);
            _exit(joins ? -open_at("forks", &again, &other) : 0);
        }
        assert_int_equal(waitpid(child, &status, 0), child); /* so this process sleeps */
        assert_int_equal(WEXITSTATUS(status), joins ? EBUSY : 0);
        assert_true(pthread_mutex_trylock(&job->mutex) == EBUSY);
    }
    job_unlock(job);
    assert_int_equal(open_at("forks", &again, &other), 0);
    assert_true(rs_job_share_take(&own, 400));
}

/* As in a signal handler. */
TEST(a_thread_that_has_the_mutex_does_not_wait_for_itself)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);

    assert_true(rs_job_share_take(&own, 600));
    assert_true(job_lock(job, true));
    assert_false(rs_job_share_take(&own, 1));
    rs_job_share_add(&own, (size_t)-600);
    job_unlock(job);
    assert_true(rs_job_share_take(&own, LIMIT));
}

/* ---- bytes that are given for those that wait ---- */

static void give(struct rs_job_share *share, size_t bytes)
{
    rs_job_giving = true;
    rs_job_share_add(share, 0 - bytes);
    rs_job_giving = false;
}

TEST_WITH(stop_clock, start_clock, what_is_given_back_for_others_is_kept_for_the_oldest)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share rich = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);

    assert_true(rs_job_share_take(&rich, LIMIT));
    rs_job_share_want(&one, 300);
    rs_job_share_want(&two, 300);
    give(&rich, 400);
    assert_int_equal(rs_job_share_missing(&one, 300), 0);
    assert_int_equal(rs_job_share_missing(&two, 300), 200);
    assert_int_equal(rs_job_share_wanted(&rich), 200);
    assert_false(rs_job_share_take(&rich, 1)); /* nobody else has it */
    assert_false(rs_job_share_take(&two, 101));
    assert_true(rs_job_share_take(&one, 200));
    assert_true(rs_job_share_take(&one, 100));
    rs_job_share_want_no_more(&one, 300, true);
    give(&rich, 250); /* 50 more than anybody wants */
    assert_true(rs_job_share_take(&rich, 50));
    assert_false(rs_job_share_take(&rich, 1));
    assert_true(rs_job_share_take(&two, 300));
    rs_job_share_want_no_more(&two, 300, true);
    assert_int_equal(total_in(job), LIMIT);
    assert_int_equal(rs_job_share_others(&rich), 600);
    rs_job_share_add(&one, (size_t)-300); /* of its own accord: for everybody */
    assert_true(rs_job_share_take(&rich, 300));
}

TEST_WITH(stop_clock, start_clock, what_is_kept_comes_back_when_its_member_gives_up_or_stops)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share rich = share_of(job, first_uuid, LIMIT);
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);

    assert_true(rs_job_share_take(&rich, LIMIT));
    rs_job_share_want(&one, 300);
    rs_job_share_want(&two, 200);
    give(&rich, 100);
    rs_job_share_want_no_more(&one, 300, false); /* the next one has it */
    assert_true(rs_job_share_take(&two, 100));
    give(&rich, 100);
    assert_false(rs_job_share_take(&rich, 100));
    atomic_fetch_add(&clock_ahead_ns, RS_JOB_LIMIT_KEPT_MS * 1000000ull);
    assert_true(rs_job_share_take(&rich, 100)); /* nobody asks any more */
    give(&rich, 100);
    assert_true(rs_job_share_take(&rich, 100)); /* nor is it waited for */
}

TEST_WITH(stop_clock, start_clock, nothing_is_kept_for_the_dead)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share rich = share_of(job, first_uuid, LIMIT);
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);

    assert_true(rs_job_share_take(&rich, 900));
    assert_true(rs_job_share_take(&one, 100));
    rs_job_share_want(&one, 300);
    give(&rich, 100);
    one.entry->owner = (uint64_t)INT32_MAX << 32 | 1;
    assert_true(rs_job_limit_reap(job)); /* what it had is waited for */
    assert_true(rs_job_share_take(&rich, 100));
}

/* ---- idle bytes ---- */

TEST(idle_bytes_are_no_more_than_taken_ones)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);

    assert_int_equal(rs_job_share_others_idle(&two), 0);
    assert_true(rs_job_share_take(&one, 600));
    rs_job_share_set_idle(&one, 100);
    rs_job_share_freed(&one, 50);
    assert_int_equal(rs_job_share_others_idle(&two), 150);
    assert_int_equal(rs_job_share_others_idle(&one), 0); /* its own are not others' */
    rs_job_share_freed(&one, 5000);
    assert_int_equal(rs_job_share_others_idle(&two), 600);
}

TEST(what_is_lacking_is_what_all_want_together)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);
    struct rs_job_share three = share_of(job, first_uuid, LIMIT);

    assert_true(rs_job_share_take(&one, 900));
    assert_int_equal(rs_job_share_missing(&two, 100), 0);
    assert_int_equal(rs_job_share_missing(&two, 300), 200);
    assert_int_equal(rs_job_share_wanted(&one), 0);
    rs_job_share_want(&two, 300);
    rs_job_share_want(&three, 150);
    assert_int_equal(rs_job_share_wanted(&one), 350);
    rs_job_share_add(&one, (size_t)-350);
    assert_int_equal(rs_job_share_wanted(&one), 0);
    rs_job_share_want_no_more(&two, 300, false);
    rs_job_share_want_no_more(&three, 150, false);
    assert_int_equal(two.entry->wanted_bytes, 0);
}

TEST(a_question_is_answered_once)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);
    uint32_t releases;

    assert_false(rs_job_share_is_asked(&one));
    rs_job_share_ask(&two);
    rs_job_share_ask(&two);
    atomic_store(rs_attention, 0);
    rs_job_share_freed(&one, 1); /* by which it sees the question */
    assert_true(atomic_load(rs_attention) & RS_ATTENTION_JOB);
    assert_true(rs_job_share_is_asked(&one));
    assert_false(rs_job_share_is_asked(&one));
    atomic_store(rs_attention, 0);
    rs_job_share_freed(&one, 1);
    assert_int_equal(atomic_load(rs_attention), 0);
    releases = rs_job_share_releases(&two);
    rs_job_share_answer(&one);
    assert_int_equal(rs_job_share_releases(&two), releases + 1);
    rs_job_share_wait(&two, releases, UINT64_MAX / 2); /* no wait: it has changed */
}

/* Raises the word of the process whose file it is. */
TEST(a_member_with_idle_bytes_is_called)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own;
    int status;

    rs_commands_begin(false);
    own = share_of(job, first_uuid, LIMIT);
    assert_true(rs_job_share_take(&own, 600));
    atomic_store(rs_attention, 0);
    for (int idle = 0; idle < 2; idle++) {
        rs_job_share_set_idle(&own, idle ? 200 : 0);
        if (fork() == 0) {
            struct rs_job_share other = share_of(job, first_uuid, LIMIT);
            rs_job_share_ask(&other);
            _exit(0);
        }
        assert_true(wait(&status) > 0 && status == 0);
        assert_int_equal(atomic_load(rs_attention), idle ? RS_ATTENTION_JOB : 0);
    }
    own.entry->commands_inode++; /* as when the descriptor is another file's by now */
    atomic_store(rs_attention, 0);
    if (fork() == 0) {
        struct rs_job_share other = share_of(job, first_uuid, LIMIT);
        rs_job_share_ask(&other);
        _exit(0);
    }
    assert_true(wait(&status) > 0 && status == 0);
    assert_int_equal(atomic_load(rs_attention), 0);
    rs_commands_forget();
}

/* ---- where members live ---- */

TEST(a_file_of_another_namespace_is_refused_while_it_has_members)
{
    struct rs_job_limit *job, *again;
    struct rs_job_entry *member, *other;
    uint64_t home = rs_process_namespace();

    assert_int_equal(open_at("homes", &job, &member), 0);
    assert_int_equal(job->home, home);
    job->home = home + 1;
    assert_int_equal(open_at("homes", &again, &other), -EXDEV);
    assert_int_equal(job->home, home + 1);
    job->releases = 300;
    member->owner = (uint64_t)INT32_MAX << 32 | 1; /* who is not here, and may be there */
    assert_false(rs_job_limit_reap(job));
    assert_int_equal(job->releases, 300);
    member->owner = 0;
    assert_int_equal(open_at("homes", &again, &other), 0);
    assert_int_equal(again->home, home);
    assert_int_equal(again->releases, 0);
}

/* Containers of one kernel may each have a name of the boot (systemd-nspawn, LXC). */
TEST(another_name_of_the_boot_takes_nothing_from_members_of_another_namespace)
{
    struct rs_job_limit *job, *again;
    struct rs_job_entry *member, *other;
    uint64_t home = rs_process_namespace();

    assert_int_equal(open_at("kernels", &job, &member), 0);
    job->releases = 300;
    job->home = home + 1;
    job->boot[0] ^= 1;
    assert_int_equal(open_at("kernels", &again, &other), -EXDEV);
    assert_int_equal(job->home, home + 1);
    assert_int_equal(job->releases, 300);
    member->owner = 0;
    assert_int_equal(open_at("kernels", &again, &other), 0);
    assert_int_equal(again->home, home);
}

TEST(members_of_an_earlier_boot_are_forgotten)
{
    struct rs_job_limit *job, *again;
    struct rs_job_entry *member, *other;

    assert_int_equal(open_at("boots", &job, &member), 0);
    job->releases = 300;
    job->boot[0] ^= 1;
    member->owner = (uint64_t)INT32_MAX << 32 | 1; /* no process has this number */
    assert_int_equal(open_at("boots", &again, &other), 0);
    assert_int_equal(again->releases, 0);
    assert_int_equal(again->entries_used, 1);
}

TEST(members_that_live_are_of_this_boot)
{
    struct rs_job_limit *job, *again;
    struct rs_job_entry *member, *other;

    assert_int_equal(open_at("living", &job, &member), 0);
    job->releases = 300;
    job->boot[0] ^= 1;
    assert_int_equal(open_at("living", &again, &other), 0);
    assert_int_equal(again->releases, 300);
    assert_ptr_equal(other, &again->entries[1]);
}

/* A file like a `run`'s; each open takes a descriptor of its own. */
static int file_of_run(struct rs_job_limit **job)
{
    int fd = memfd_create("run", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    assert_int_equal(ftruncate(fd, sizeof(**job)), 0);
    *job = mmap(NULL, sizeof(**job), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(*job, MAP_FAILED);
    assert_int_equal(rs_job_limit_init(*job, limit_size), 0);
    return fd;
}

TEST(the_job_of_a_run_is_of_the_namespace_of_the_run)
{
    struct rs_job_limit *job, *again;
    struct rs_job_entry *member;
    struct rs_size limit = {LIMIT + 1, RS_SIZE_BYTES};
    int fd = file_of_run(&job);

    assert_int_equal(rs_job_limit_open(dup(fd), NULL, &limit, &again, &member), -EACCES);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    job->home++;
    assert_int_equal(rs_job_limit_open(dup(fd), NULL, &limit, &again, &member), -ESTALE);
    job->home--;
    assert_int_equal(rs_job_limit_open(dup(fd), NULL, &limit, &again, &member), 0);
    assert_int_equal(limit.number, LIMIT);
    job->layout[0] = 'R';
    assert_int_equal(rs_job_limit_open(fd, NULL, &limit, &again, &member), -EPROTO);
}

/* A file says the limit of those who live. */
TEST(members_with_another_limit_are_refused)
{
    struct rs_size limit = {LIMIT + 1, RS_SIZE_BYTES};
    struct rs_job_limit *job, *again;
    struct rs_job_entry *member, *other;

    assert_int_equal(open_at("limits", &job, &member), 0);
    assert_int_equal(rs_job_limit_open(-1, "limits", &limit, &again, &other), -EEXIST);
    assert_int_equal(limit.number, LIMIT);
    limit.number = LIMIT + 1;
    member->owner = (uint64_t)INT32_MAX << 32 | 1; /* no process has this number */
    assert_int_equal(rs_job_limit_open(-1, "limits", &limit, &again, &other), 0);
    assert_int_equal(again->limit.number, LIMIT + 1);
}

/* Who joins has the file alone, and is waited for only so long. */
TEST(a_process_that_never_ends_to_join_is_not_waited_for)
{
    struct rs_job_limit *job;
    int fd;

    assert_int_equal(open_at("locked", &job, NULL), 0);
    fd = open("locked", O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    atomic_store(&clock_step_ns, RS_JOB_LIMIT_STUCK_MS * 100000ull);
    assert_int_equal(open_at("locked", &job, NULL), -EBUSY);
    atomic_store(&clock_step_ns, 0);
    close(fd);
    assert_int_equal(open_at("locked", &job, NULL), 0);
}

/* Each waits while others have their turns, and no turn lasts long: the clock of each stands, while
 * it naps too. */
TEST_WITH(stop_clock, start_clock, all_that_join_at_once_have_places)
{
    struct rs_job_limit *job;
    struct rs_job_entry *member;
    int begin[2], joined[2], places = 0;
    pid_t children[CROWD];
    bool failed = false;
    char byte;

    atomic_store(&naps_take_no_time, true);
    assert_int_equal(open_at("crowd", &job, NULL), 0);
    assert_true(pipe(begin) == 0 && pipe(joined) == 0);
    for (int i = 0; i < CROWD; i++)
        if ((children[i] = fork_bound()) == 0) {
            close(begin[1]);
            (void)!read(begin[0], &byte, 1);
            byte = (char)open_at("crowd", &job, &member);
            (void)!write(joined[1], &byte, 1);
            for (;;)
                pause();
        }
    close(begin[1]);
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(read(joined[0], &byte, 1), 1);
        failed = failed || byte != 0;
    }
    assert_false(failed);
    for (int i = 0; i < CROWD; i++)
        places += job->entries[i].owner != 0;
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(kill(children[i], SIGKILL), 0);
        assert_int_equal(waitpid(children[i], NULL, 0), children[i]);
    }
    assert_int_equal(places, CROWD);
    atomic_store(&naps_take_no_time, false);
    close(begin[0]);
    close(joined[0]);
    close(joined[1]);
}

/* ---- the file ---- */

/* Neither kills the process, by SIGXFSZ or, at the first store, by SIGBUS; and the file can be a
 * job when there is room. */
TEST(a_file_without_room_is_refused)
{
    struct rlimit limit, small;
    struct rs_job_limit *job;
    struct stat status;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){.rlim_cur = 1 << 19, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(open_at("roomless", &job, NULL), -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    fallocate_error = ENOSPC;
    assert_int_equal(open_at("roomless", &job, NULL), -ENOSPC);
    fallocate_error = 0;
    assert_int_equal(open_at("roomless", &job, NULL), 0);
    assert_int_equal(stat("roomless", &status), 0);
    assert_true((size_t)status.st_blocks * 512 >= sizeof(*job));
}

TEST(files_that_are_no_jobs_are_refused)
{
    const char *path = "job";
    struct rs_job_limit *job, *again;
    struct stat status;

    assert_int_equal(open_at(path, &job, NULL), 0);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_int_equal(open_at(path, &again, NULL), 0);
    job->releases = 7;
    assert_int_equal(again->releases, 7);

    job->layout[0] = 'R';
    assert_int_equal(open_at(path, &again, NULL), -EPROTO);
    job->layout[0] = 'r';
    assert_int_equal(chmod(path, 0660), 0);
    assert_int_equal(open_at(path, &again, NULL), -EACCES);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(open_at(path, &again, NULL), -EPROTO);
}
