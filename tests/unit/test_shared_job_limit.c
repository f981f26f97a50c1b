/* SPDX-License-Identifier: Apache-2.0 */
/* The limit over a job: processes that take, give back and die never have more than the limit. */
#include "unit.h"

#include "base/process.h"
#include "flying_clock.h"
#include "folder.h"
#include "shared/commands.h"
#include "shared/job_limit.h"

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

enum { LIMIT = 1000, PROCESSES = 12, ROUNDS = 3000, CROWD = 256 };

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

/* As an account does (ledger/account.c). */
static bool take(struct rs_job_share *share, size_t bytes)
{
    struct rs_job_contest contest = {0};
    enum rs_job_answer answer;

    do
        answer = rs_job_share_announce(share, bytes);
    while (answer == RS_JOB_CONTESTED && rs_job_contest_wait(&contest));
    if (answer == RS_JOB_FITS)
        rs_job_share_settle(share, bytes, true);
    return answer == RS_JOB_FITS;
}

TEST(members_share_the_limit_of_a_device)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);
    struct rs_job_share far = share_of(job, other_uuid, LIMIT);

    assert_true(take(&one, 600));
    assert_false(take(&two, 401));
    assert_true(take(&two, 400));
    assert_false(take(&one, 1));
    assert_int_equal(rs_job_share_others(&one), 400);
    assert_true(take(&far, LIMIT)); /* of another device */
    rs_job_share_add(&two, (size_t)-150);
    assert_true(take(&one, 150));
    assert_false(take(&one, LIMIT + 1));
}

/* What is announced may be refused yet: nobody is refused for it. */
TEST(announced_bytes_refuse_nobody_for_good)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);

    assert_int_equal(rs_job_share_announce(&one, 600), RS_JOB_FITS);
    assert_int_equal(rs_job_share_announce(&two, 600), RS_JOB_CONTESTED);
    assert_int_equal(two.member->pending_bytes[0], 0);
    rs_job_share_settle(&one, 600, false);
    assert_int_equal(rs_job_share_announce(&two, 600), RS_JOB_FITS);
    rs_job_share_settle(&two, 600, true);
    assert_int_equal(rs_job_share_announce(&one, 600), RS_JOB_FULL);
    assert_int_equal(one.member->pending_bytes[0], 0);
    assert_int_equal(rs_job_share_others(&one), 600);
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
        } else if (take(&share, (size_t)bytes)) {
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
        bool taken = take(&share, (size_t)bytes);
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
    pid_t process;

    if (!knows_itself())
        return;
    process = take_and_wait(job, 700);

    assert_false(rs_job_limit_reap(job)); /* nobody is gone */
    assert_int_equal(rs_job_share_others(&own), 700);
    kill_and_wait(process);
    assert_true(rs_job_limit_reap(job));
    assert_int_equal(rs_job_share_others(&own), 700);
    assert_false(take(&own, 400));
    let_settle(job);
    assert_int_equal(rs_job_share_others(&own), 0);
    assert_true(take(&own, LIMIT));
}

TEST_WITH(stop_clock, start_clock, a_place_that_comes_back_is_settled_anew)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    pid_t process;

    if (!knows_itself())
        return;
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

    if (!knows_itself())
        return;
    assert_int_equal(pipe(ready), 0);
    process = fork_bound();
    if (process == 0) {
        struct rs_job_share share = {
            .job = job, .member = rs_job_limit_join(job), .limit_bytes = LIMIT};
        pthread_t thread;
        (void)!take(&share, 300);
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

/* Whoever had the place before, and however it lost it. */
TEST(a_place_is_empty_for_who_takes_it)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_member *member = &job->members[0];

    member->pending_bytes[1] = 1;
    member->taken_bytes[2] = 2;
    member->idle_bytes[3] = 3;
    member->wanted_bytes[4] = 4;
    member->commands_fd = 5;
    job->members_used = 1;
    assert_ptr_equal(rs_job_limit_join(job), member);
    assert_int_equal(member->pending_bytes[1], 0);
    assert_int_equal(member->taken_bytes[2], 0);
    assert_int_equal(member->idle_bytes[3], 0);
    assert_int_equal(member->wanted_bytes[4], 0);
    assert_int_equal(member->commands_fd, 0);
}

/* A program keeps its number and its start time when it becomes another one, but not its memory. */
TEST_WITH(stop_clock, start_clock, what_a_program_had_before_it_became_another_is_the_dead_s)
{
    struct rs_job_limit *job, *again;
    struct rs_job_member *before;
    struct rs_job_share own = {.limit_bytes = LIMIT};

    if (!knows_itself())
        return;
    assert_int_equal(rs_job_limit_open(-1, "became", &job, &before), 0);
    before->taken_bytes[0] = 700;
    assert_int_equal(rs_job_limit_open(-1, "became", &again, &own.member), 0);
    own.job = again;
    assert_int_equal(rs_job_share_others(&own), 700); /* the device may not have closed yet */
    assert_true(rs_job_limit_reap(job));
    let_settle(job);
    assert_int_equal(rs_job_share_others(&own), 0);
    assert_int_equal(before->owner, 0);
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

    if (!knows_itself())
        return;
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

/* ---- idle bytes ---- */

TEST(idle_bytes_are_no_more_than_taken_ones)
{
    struct rs_job_limit *job = new_job();
    struct rs_job_share one = share_of(job, first_uuid, LIMIT);
    struct rs_job_share two = share_of(job, first_uuid, LIMIT);

    assert_int_equal(rs_job_share_others_idle(&two), 0);
    assert_true(take(&one, 600));
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

    assert_true(take(&one, 900));
    assert_int_equal(rs_job_share_missing(&two, 100), 0);
    assert_int_equal(rs_job_share_missing(&two, 300), 200);
    assert_int_equal(rs_job_share_wanted(&one), 0);
    rs_job_share_want(&two, 300);
    rs_job_share_want(&three, 150);
    assert_int_equal(rs_job_share_wanted(&one), 350);
    rs_job_share_add(&one, (size_t)-350);
    assert_int_equal(rs_job_share_wanted(&one), 0);
    rs_job_share_want(&two, (size_t)-300);
    rs_job_share_want(&three, (size_t)-150);
    assert_int_equal(job->members[1].wanted_bytes[0], 0);
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
    struct rs_job_share own = share_of(job, first_uuid, LIMIT);
    int status;

    if (!knows_itself())
        return;
    rs_commands_begin(false);
    rs_job_limit_can_be_asked(own.member);
    assert_true(take(&own, 600));
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
    own.member->commands_inode++; /* as when the descriptor is another file's by now */
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
    struct rs_job_member *member, *other;
    uint64_t home = rs_process_namespace();

    assert_int_equal(rs_job_limit_open(-1, "homes", &job, &member), 0);
    assert_int_equal(job->home, home);
    job->home = home + 1;
    assert_int_equal(rs_job_limit_open(-1, "homes", &again, &other), -EXDEV);
    assert_int_equal(job->home, home + 1);
    member->taken_bytes[0] = 300;
    member->owner = (uint64_t)INT32_MAX << 32 | 1; /* who is not here, and may be there */
    assert_false(rs_job_limit_reap(job));
    assert_int_equal(member->taken_bytes[0], 300);
    member->owner = 0;
    assert_int_equal(rs_job_limit_open(-1, "homes", &again, &other), 0);
    assert_int_equal(again->home, home);
    assert_int_equal(again->members[0].taken_bytes[0], 0);
}

/* Containers of one kernel may each have a name of the boot (systemd-nspawn, LXC). */
TEST(another_name_of_the_boot_takes_nothing_from_members_of_another_namespace)
{
    struct rs_job_limit *job, *again;
    struct rs_job_member *member, *other;
    uint64_t home = rs_process_namespace();

    assert_int_equal(rs_job_limit_open(-1, "kernels", &job, &member), 0);
    member->taken_bytes[0] = 300;
    job->home = home + 1;
    job->boot[0] ^= 1;
    assert_int_equal(rs_job_limit_open(-1, "kernels", &again, &other), -EXDEV);
    assert_int_equal(job->home, home + 1);
    assert_int_equal(member->taken_bytes[0], 300);
    member->owner = 0;
    assert_int_equal(rs_job_limit_open(-1, "kernels", &again, &other), 0);
    assert_int_equal(again->home, home);
}

TEST(members_of_an_earlier_boot_are_forgotten)
{
    struct rs_job_limit *job, *again;
    struct rs_job_member *member, *other;

    assert_int_equal(rs_job_limit_open(-1, "boots", &job, &member), 0);
    member->taken_bytes[0] = 300;
    job->boot[0] ^= 1;
    member->owner = (uint64_t)INT32_MAX << 32 | 1; /* no process has this number */
    assert_int_equal(rs_job_limit_open(-1, "boots", &again, &other), 0);
    assert_int_equal(other->taken_bytes[0], 0);
    assert_int_equal(again->members_used, 1);
}

TEST(members_that_live_are_of_this_boot)
{
    struct rs_job_limit *job, *again;
    struct rs_job_member *member, *other;

    if (!knows_itself())
        return;
    assert_int_equal(rs_job_limit_open(-1, "living", &job, &member), 0);
    member->taken_bytes[0] = 300;
    job->boot[0] ^= 1;
    assert_int_equal(rs_job_limit_open(-1, "living", &again, &other), 0);
    assert_int_equal(again->members[0].taken_bytes[0], 300);
    assert_ptr_equal(other, &again->members[1]);
}

TEST(the_job_of_a_run_is_of_the_namespace_of_the_run)
{
    struct rs_job_limit *job, *again;
    struct rs_job_member *member;

    assert_int_equal(rs_job_limit_open(-1, "run", &job, NULL), 0);
    rs_job_limit_init(job);
    job->home++;
    assert_int_equal(rs_job_limit_open(open("run", O_RDWR), NULL, &again, &member), -ESTALE);
    job->home--;
    assert_int_equal(rs_job_limit_open(open("run", O_RDWR), NULL, &again, &member), 0);
}

/* Who joins has the file alone, and is waited for only so long. */
TEST(a_process_that_never_ends_to_join_is_not_waited_for)
{
    struct rs_job_limit *job;
    int fd;

    assert_int_equal(rs_job_limit_open(-1, "locked", &job, NULL), 0);
    fd = open("locked", O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    atomic_store(&clock_step_ns, RS_JOB_LIMIT_SETTLE_MS * 100000ull);
    assert_int_equal(rs_job_limit_open(-1, "locked", &job, NULL), -EBUSY);
    atomic_store(&clock_step_ns, 0);
    close(fd);
    assert_int_equal(rs_job_limit_open(-1, "locked", &job, NULL), 0);
}

/* Each waits while others have their turns, and no turn lasts long: the clock of each stands. */
TEST_WITH(stop_clock, start_clock, all_that_join_at_once_have_places)
{
    struct rs_job_limit *job;
    struct rs_job_member *member;
    int begin[2], joined[2], places = 0;
    pid_t children[CROWD];
    bool failed = false;
    char byte;

    if (!knows_itself()) /* the members would take each other for gone */
        return;
    assert_int_equal(rs_job_limit_open(-1, "crowd", &job, NULL), 0);
    assert_true(pipe(begin) == 0 && pipe(joined) == 0);
    for (int i = 0; i < CROWD; i++)
        if ((children[i] = fork_bound()) == 0) {
            close(begin[1]);
            (void)!read(begin[0], &byte, 1);
            byte = (char)rs_job_limit_open(-1, "crowd", &job, &member);
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
        places += job->members[i].owner != 0;
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(kill(children[i], SIGKILL), 0);
        assert_int_equal(waitpid(children[i], NULL, 0), children[i]);
    }
    assert_int_equal(places, CROWD);
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
    small = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(rs_job_limit_open(-1, "roomless", &job, NULL), -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    fallocate_error = ENOSPC;
    assert_int_equal(rs_job_limit_open(-1, "roomless", &job, NULL), -ENOSPC);
    fallocate_error = 0;
    assert_int_equal(rs_job_limit_open(-1, "roomless", &job, NULL), 0);
    assert_int_equal(stat("roomless", &status), 0);
    assert_true((size_t)status.st_blocks * 512 >= sizeof(*job));
}

TEST(files_that_are_no_jobs_are_refused)
{
    const char *path = "job";
    struct rs_job_limit *job, *again;
    struct stat status;

    assert_int_equal(rs_job_limit_open(-1, path, &job, NULL), 0);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_int_equal(rs_job_limit_open(-1, path, &again, NULL), 0);
    job->members[3].taken_bytes[1] = 7;
    assert_int_equal(again->members[3].taken_bytes[1], 7);

    assert_int_equal(rs_job_limit_open(open(path, O_RDWR), NULL, &again, NULL), 0);

    job->layout[0] = 'R';
    assert_int_equal(rs_job_limit_open(-1, path, &again, NULL), -EPROTO);
    job->layout[0] = 'r';
    assert_int_equal(chmod(path, 0660), 0);
    assert_int_equal(rs_job_limit_open(-1, path, &again, NULL), -EACCES);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(truncate(path, 5), 0);
    assert_int_equal(rs_job_limit_open(-1, path, &again, NULL), -EPROTO);
}
