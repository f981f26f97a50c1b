/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings: what is written is read again, however the process ends and whatever becomes of the
 * file. */
#include "unit.h"

#include "base/lock.h"
#include "folder.h"
#include "recording/file.h"
#include "recording/recorder.h"
#include "tool/recording.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

#define MIB ((size_t)1 << 20)

enum {
    CHUNKS = 128,
    LAPS = 3,
    THREADS = 80 /* more than have an index of their own */,
    EACH = 2000
};

static const uint64_t place = (uint64_t)3 << RS_RECORDING_STREAM_BITS;

/* ---- file systems that are full, or cannot reserve ---- */

static size_t disk_bytes = SIZE_MAX;
static unsigned long file_system;

int __real_posix_fallocate(int fd, off_t offset, off_t length);
int __wrap_posix_fallocate(int fd, off_t offset, off_t length);
int __real_posix_fallocate64(int fd, off_t offset, off_t length);
int __wrap_posix_fallocate64(int fd, off_t offset, off_t length);
int __real_fstatfs(int fd, struct statfs *status);
int __wrap_fstatfs(int fd, struct statfs *status);
int __real_fstatfs64(int fd, struct statfs *status);
int __wrap_fstatfs64(int fd, struct statfs *status);

int __wrap_posix_fallocate(int fd, off_t offset, off_t length)
{
    return (size_t)(offset + length) > disk_bytes ? ENOSPC
                                                  : __real_posix_fallocate(fd, offset, length);
}

int __wrap_posix_fallocate64(int fd, off_t offset, off_t length)
{
    return (size_t)(offset + length) > disk_bytes ? ENOSPC
                                                  : __real_posix_fallocate64(fd, offset, length);
}

/* Of this write, counted from 1, `cut_bytes` are written, and then the process is killed. */
static int killed_write;
static size_t cut_bytes;
static bool writes_fail;
static time_t write_takes_s;
static _Atomic time_t written_s; /* by the clock of the test, all writes so far */

ssize_t __real_pwrite(int fd, const void *bytes, size_t length, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *bytes, size_t length, off_t offset);
ssize_t __real_pwrite64(int fd, const void *bytes, size_t length, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t length, off_t offset);

static bool may_write(int fd, const void *bytes, size_t length, off_t offset)
{
    static int writes;

    if (++writes == killed_write) {
        (void)__real_pwrite(fd, bytes, cut_bytes, offset);
        raise(SIGKILL);
    }
    written_s += write_takes_s;
    if (!writes_fail && (size_t)offset + length <= disk_bytes)
        return true;
    errno = writes_fail ? EIO : ENOSPC;
    return false;
}

ssize_t __wrap_pwrite(int fd, const void *bytes, size_t length, off_t offset)
{
    return may_write(fd, bytes, length, offset) ? __real_pwrite(fd, bytes, length, offset) : -1;
}

ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t length, off_t offset)
{
    return may_write(fd, bytes, length, offset) ? __real_pwrite64(fd, bytes, length, offset) : -1;
}

static int as_file_system(int result, struct statfs *status)
{
    if (result == 0 && file_system)
        status->f_type = (__typeof__(status->f_type))file_system;
    return result;
}

int __wrap_fstatfs(int fd, struct statfs *status)
{
    return as_file_system(__real_fstatfs(fd, status), status);
}

int __wrap_fstatfs64(int fd, struct statfs *status)
{
    return as_file_system(__real_fstatfs64(fd, status), status);
}

/* ---- helpers ---- */

/* Runs in a child, which has a recorder of its own, and returns how it ended. */
static int in_child(void (*run)(const char *path), const char *path)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        (void)freopen("said", "w", stderr);
        run(path);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void must(bool good)
{
    if (!good)
        _exit(77);
}

static struct tool_recording *opened(const char *path)
{
    char reason[TOOL_REASON_BYTES] = "";
    struct tool_recording *recording = tool_recording_open(path, reason);

    assert_string_equal(reason, "");
    assert_non_null(recording);
    return recording;
}

static void begin(const char *path, size_t size_bytes)
{
    must(rs_recorder_begin(path, size_bytes));
}

/* ---- what is read again ---- */

static void write_some(const char *path)
{
    begin(path, MIB);
    rs_record(RS_RECORDING_STACK, 0, 8 * MIB, place,
              rs_recorder_define(RS_RECORDING_RESOURCE, NULL, 0, "pool(cuda)", 10));
    rs_record(RS_RECORDING_ALLOCATE, 0x10000, 4096, place, 0);
    rs_record(RS_RECORDING_ALLOCATE, 0x20000, 8192,
              rs_recorder_place(3, RS_RECORDING_MANAGED, (void *)0x5555), 0);
    must(rs_recorder_mark(RS_RECORDING_PHASE_BEGIN, "step", true));
    rs_record(RS_RECORDING_DEALLOCATE, 0x10000, 4096, place, 0);
    rs_record(RS_RECORDING_REFUSED, 0, SIZE_MAX, place, 0);
}

static void write_and_end(const char *path)
{
    write_some(path);
    rs_recorder_end();
}

static void write_and_die(const char *path)
{
    write_some(path);
    raise(SIGKILL);
}

static void assert_some(struct tool_recording *recording)
{
    static const struct tool_recording_event expected[] = {
        {.kind = RS_RECORDING_STACK, .size_bytes = 8 * MIB, .device = 3, .name = "pool(cuda)"},
        {.kind = RS_RECORDING_ALLOCATE, .address = 0x10000, .size_bytes = 4096, .device = 3},
        {.kind = RS_RECORDING_ALLOCATE,
         .address = 0x20000,
         .size_bytes = 8192,
         .device = 3,
         .memory = RS_RECORDING_MANAGED,
         .stream = 0x5555},
        {.kind = RS_RECORDING_PHASE_BEGIN, .name = "step"},
        {.kind = RS_RECORDING_DEALLOCATE, .address = 0x10000, .size_bytes = 4096, .device = 3},
        {.kind = RS_RECORDING_REFUSED, .size_bytes = ((size_t)1 << 48) - 1, .device = 3},
    };
    struct tool_recording_event event;
    uint64_t before_ns = 0;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(expected); i++) {
        assert_true(tool_recording_next(recording, &event));
        assert_int_equal(event.kind, expected[i].kind);
        assert_int_equal(event.address, expected[i].address);
        assert_int_equal(event.size_bytes, expected[i].size_bytes);
        assert_int_equal(event.device, expected[i].device);
        assert_int_equal(event.memory, expected[i].memory);
        assert_int_equal(event.stream, expected[i].stream);
        assert_string_equal(event.name, expected[i].name ? expected[i].name : "");
        assert_int_equal(event.thread, tool_recording_facts(recording)->header.process);
        assert_true(event.time_ns >= before_ns);
        before_ns = event.time_ns;
    }
    assert_false(tool_recording_next(recording, &event));
    assert_int_equal(tool_recording_facts(recording)->events, RS_ARRAY_LENGTH(expected));
    assert_int_equal(tool_recording_facts(recording)->damaged, 0);
    assert_int_equal(tool_recording_facts(recording)->header.lost_events, 0);
    assert_string_equal(tool_recording_facts(recording)->program, program_invocation_short_name);
}

TEST(what_is_recorded_is_read)
{
    struct tool_recording *recording;
    struct stat status;

    assert_int_equal(in_child(write_and_end, "ended"), 0);
    recording = opened("ended");
    assert_true(tool_recording_facts(recording)->header.ended_ns > 0);
    assert_some(recording);
    assert_some(recording);
    tool_recording_close(recording);
    assert_int_equal(stat("ended", &status), 0);
    assert_int_equal(status.st_size, RS_RECORDING_HEADER_BYTES + 2 * RS_RECORDING_CHUNK_BYTES);
}

TEST(nothing_is_lost_when_the_process_is_killed)
{
    struct tool_recording *recording;

    assert_int_equal(WTERMSIG(in_child(write_and_die, "killed")), SIGKILL);
    recording = opened("killed");
    assert_int_equal(tool_recording_facts(recording)->header.ended_ns, 0);
    assert_some(recording);
    tool_recording_close(recording);
}

TEST(a_file_that_cannot_be_mapped_is_whole_at_exit)
{
    struct tool_recording *recording;

    file_system = 0x9123683e; /* btrfs */
    assert_int_equal(in_child(write_and_end, "copied"), 0);
    file_system = 0;
    recording = opened("copied");
    assert_some(recording);
    tool_recording_close(recording);
}

/* ---- the ring ---- */

static size_t counted(struct tool_recording *recording, enum rs_recording_event_kind kind)
{
    struct tool_recording_event event;
    size_t count = 0;

    while (tool_recording_next(recording, &event))
        count += event.kind == kind;
    return count;
}

/* The last chunk is not full. */
static const size_t many = (size_t)CHUNKS * RS_RECORDING_EVENTS_EACH * LAPS + 100;

static void write_many(const char *path)
{
    uint32_t first = 0;

    begin(path, MIB);
    for (int i = 0; i < 2000; i++) { /* more than a chunk has room for */
        uint32_t number = rs_recorder_define(RS_RECORDING_NAME, NULL, 0, "name", 4);
        first = first ? first : number;
    }
    for (size_t i = 0; i < many; i++)
        rs_record(RS_RECORDING_ALLOCATE, i, i, place, first);
    rs_recorder_end();
}

/* The newest events are there, the oldest are counted, and definitions stay. */
static void assert_many(const char *path, size_t chunks_least, size_t chunks_most)
{
    struct tool_recording *recording = opened(path);
    const struct tool_recording_facts *facts = tool_recording_facts(recording);
    struct tool_recording_event event;
    uint64_t next;

    assert_int_equal(facts->damaged, 0);
    assert_int_equal(facts->events + facts->header.lost_events, many);
    assert_true(facts->events >= chunks_least * RS_RECORDING_EVENTS_EACH);
    assert_true(facts->events <= chunks_most * RS_RECORDING_EVENTS_EACH);
    assert_string_equal(facts->program, program_invocation_short_name);
    for (next = facts->header.lost_events; tool_recording_next(recording, &event); next++) {
        assert_int_equal(event.address, next);
        assert_string_equal(event.name, "name");
    }
    assert_int_equal(next, many);
    tool_recording_close(recording);
}

TEST(the_oldest_events_are_replaced_and_counted)
{
    struct stat status;

    assert_int_equal(in_child(write_many, "ring"), 0);
    assert_many("ring", CHUNKS - 4, CHUNKS - 2);
    assert_int_equal(stat("ring", &status), 0);
    assert_int_equal(status.st_size, RS_RECORDING_HEADER_BYTES + CHUNKS * RS_RECORDING_CHUNK_BYTES);
}

static pthread_barrier_t all_are_there;

TEST(a_write_that_fails_loses_nothing)
{
    writes_fail = true;
    assert_int_equal(in_child(write_many, "failing"), 0);
    writes_fail = false;
    assert_many("failing", CHUNKS - 4, CHUNKS - 2);
}

static void write_many_without_descriptor(const char *path)
{
    begin(path, MIB);
    for (size_t i = 0; i < many; i++) {
        rs_record(RS_RECORDING_ALLOCATE, i, i, place, 0);
        if (i == many / LAPS / 2)
            must(close_range(RS_DESCRIPTOR_HIGH, ~0U, 0) == 0);
    }
    rs_recorder_end();
}

TEST(a_program_that_closes_the_descriptor_keeps_its_recording)
{
    struct tool_recording *recording;
    struct tool_recording_event event;
    uint64_t next;

    assert_int_equal(in_child(write_many_without_descriptor, "closed"), 0);
    recording = opened("closed");
    assert_int_equal(tool_recording_facts(recording)->damaged, 0);
    next = tool_recording_facts(recording)->header.lost_events;
    assert_true(next < many - (size_t)CHUNKS / 3 * RS_RECORDING_EVENTS_EACH);
    while (tool_recording_next(recording, &event))
        assert_int_equal(event.address, next++);
    assert_int_equal(next, many);
    tool_recording_close(recording);
}

static void *write_second_half(void *data)
{
    for (size_t i = many / 2; i < many; i++)
        rs_record(RS_RECORDING_ALLOCATE, i, i, place, 0);
    return data;
}

/* The second thread's chunk lies in the middle of the file. */
static void write_many_in_turn(const char *path)
{
    pthread_t second;

    begin(path, MIB);
    for (size_t i = 0; i < many / 2; i++)
        rs_record(RS_RECORDING_ALLOCATE, i, i, place, 0);
    must(pthread_create(&second, NULL, write_second_half, NULL) == 0);
    must(pthread_join(second, NULL) == 0);
    rs_recorder_end();
}

/* While the file grows, and where a copy behind the chunk, or before it, replaces older events. */
TEST(nothing_is_lost_or_there_twice_when_a_process_is_killed_in_a_copy)
{
    const int first_half = (int)(many / 2 / RS_RECORDING_EVENTS_EACH);
    const int writes[] = {3, CHUNKS + 10, first_half + 30, first_half + 100};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(writes); i++)
        for (cut_bytes = 0; cut_bytes <= RS_RECORDING_CHUNK_BYTES; cut_bytes += 4096) {
            struct tool_recording *recording;
            struct tool_recording_event event;
            uint64_t next, end = (uint64_t)writes[i] * RS_RECORDING_EVENTS_EACH;

            killed_write = writes[i];
            assert_int_equal(WTERMSIG(in_child(write_many_in_turn, "cut_short")), SIGKILL);
            killed_write = 0;
            if (writes[i] > first_half)
                end += many / 2 % RS_RECORDING_EVENTS_EACH;
            recording = opened("cut_short");
            next = tool_recording_facts(recording)->header.lost_events;
            if (cut_bytes == 0) /* the oldest events are counted, and still there */
                next -= rs_min(next, RS_RECORDING_EVENTS_EACH);
            while (tool_recording_next(recording, &event))
                assert_int_equal(event.address, next++);
            assert_int_equal(next, end);
            assert_int_equal(tool_recording_facts(recording)->damaged, 0);
            tool_recording_close(recording);
        }
}

TEST(a_full_disk_bounds_the_ring_of_a_file_that_cannot_be_mapped)
{
    struct stat status;

    file_system = 0x9123683e;
    disk_bytes = 2 * MIB;
    assert_int_equal(in_child(write_many, "copied_full"), 0);
    disk_bytes = SIZE_MAX;
    file_system = 0;
    assert_many("copied_full", 58, 64);
    assert_true(stat("said", &status) == 0 && status.st_size > 0 && status.st_size < 300);
}

TEST(a_full_disk_bounds_the_ring)
{
    struct stat status;

    disk_bytes = 2 * MIB;
    assert_int_equal(in_child(write_many, "full"), 0);
    disk_bytes = SIZE_MAX;
    assert_many("full", 28, 32);
    assert_true(stat("said", &status) == 0 && status.st_size > 0 && status.st_size < 300);
}

static void begin_without_space(const char *path)
{
    int lowest = dup(STDIN_FILENO);

    must(lowest >= 0 && close(lowest) == 0);
    must(!rs_recorder_begin(path, 4 * MIB));
    must(dup(STDIN_FILENO) == lowest);
}

TEST(a_file_without_space_is_closed)
{
    disk_bytes = 0;
    assert_int_equal(in_child(begin_without_space, "none"), 0);
    disk_bytes = SIZE_MAX;
    assert_int_equal(access("none", F_OK), -1);
}

static void *write_two(void *data)
{
    (void)data;
    rs_record(RS_RECORDING_DEALLOCATE, 1, 1, place, 0);
    (void)pthread_barrier_wait(&all_are_there);
    (void)pthread_barrier_wait(&all_are_there);
    rs_record(RS_RECORDING_DEALLOCATE, 2, 2, place, 0);
    return NULL;
}

static void write_beside_a_slow_thread(const char *path)
{
    pthread_t slow;

    begin(path, MIB);
    must(pthread_barrier_init(&all_are_there, NULL, 2) == 0 &&
         pthread_create(&slow, NULL, write_two, NULL) == 0);
    (void)pthread_barrier_wait(&all_are_there);
    for (size_t i = 0; i < many; i++)
        rs_record(RS_RECORDING_ALLOCATE, i, i, place, 0);
    (void)pthread_barrier_wait(&all_are_there);
    must(pthread_join(slow, NULL) == 0);
    rs_recorder_end();
}

TEST(a_chunk_that_a_slow_thread_writes_to_is_not_replaced)
{
    struct tool_recording *recording;

    assert_int_equal(in_child(write_beside_a_slow_thread, "slow"), 0);
    recording = opened("slow");
    assert_int_equal(counted(recording, RS_RECORDING_DEALLOCATE), 2);
    assert_int_equal(tool_recording_facts(recording)->damaged, 0);
    tool_recording_close(recording);
}

TEST(a_file_that_cannot_be_mapped_is_a_ring_too)
{
    file_system = 0x9123683e;
    assert_int_equal(in_child(write_many, "copied_ring"), 0);
    file_system = 0;
    assert_many("copied_ring", CHUNKS - 4, CHUNKS - 2);
}

static void *write_thread(void *data)
{
    uint64_t base = (uint64_t)(uintptr_t)data << 32;

    rs_record(RS_RECORDING_ALLOCATE, base | 1, 1, place, 0);
    (void)pthread_barrier_wait(&all_are_there);
    for (uint64_t i = 2; i <= EACH; i++)
        rs_record(RS_RECORDING_ALLOCATE, base | i, i, place, 0);
    return NULL;
}

static void run_threads(void)
{
    pthread_t threads[THREADS];

    must(pthread_barrier_init(&all_are_there, NULL, THREADS) == 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        must(pthread_create(&threads[i], NULL, write_thread, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        must(pthread_join(threads[i], NULL) == 0);
}

static void write_threads(const char *path)
{
    begin(path, 64 * MIB);
    run_threads();
    rs_recorder_end();
}

static void write_threads_beside_definitions(const char *path)
{
    begin(path, MIB);
    while (rs_recorder_define(RS_RECORDING_NAME, NULL, 0, path, strlen(path)))
        continue;
    run_threads();
    rs_recorder_end();
}

TEST(definitions_leave_room_for_the_events_of_many_threads)
{
    struct tool_recording *recording;
    const struct tool_recording_facts *facts;

    assert_int_equal(in_child(write_threads_beside_definitions, "room"), 0);
    recording = opened("room");
    facts = tool_recording_facts(recording);
    assert_int_equal(facts->events + facts->header.lost_events, THREADS * EACH);
    assert_true(facts->events > (size_t)CHUNKS / 3 * RS_RECORDING_EVENTS_EACH);
    assert_true(facts->header.lost_definitions > 0);
    assert_int_equal(facts->damaged, 0);
    tool_recording_close(recording);
}

TEST(threads_record_side_by_side)
{
    struct tool_recording *recording;
    struct tool_recording_event event;
    uint64_t seen[THREADS + 1] = {0}, before_ns = 0;

    assert_int_equal(in_child(write_threads, "threads"), 0);
    recording = opened("threads");
    assert_int_equal(tool_recording_facts(recording)->damaged, 0);
    while (tool_recording_next(recording, &event)) {
        assert_int_equal(event.address & 0xffffffff, ++seen[event.address >> 32]);
        assert_true(event.time_ns >= before_ns);
        assert_string_equal(tool_recording_thread(recording, event.thread),
                            program_invocation_short_name);
        before_ns = event.time_ns;
    }
    for (int i = 1; i <= THREADS; i++)
        assert_int_equal(seen[i], EACH);
    tool_recording_close(recording);
}

/* ---- signals, and a clock that goes back ---- */

static volatile sig_atomic_t handled;

static void record_in_handler(int number)
{
    (void)number;
    handled++;
    rs_record(RS_RECORDING_MARK, (uint64_t)handled, 0, place, 0);
}

/* Where signals come late, as on a busy machine, only so many events are recorded: the file has
 * room for two million. */
static void write_under_signals(const char *path)
{
    const uint64_t most = 1500000;
    const struct itimerval often = {{0, 50}, {0, 50}};

    begin(path, 64 * MIB);
    (void)signal(SIGALRM, record_in_handler);
    must(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (uint64_t i = 1; handled < 300; i++)
        if (i <= most)
            rs_record(RS_RECORDING_ALLOCATE, i, i, place, 0);
    must(setitimer(ITIMER_REAL, &(const struct itimerval){{0, 0}, {0, 0}}, NULL) == 0);
    must(rs_recorder_define(RS_RECORDING_NAME, NULL, (uint64_t)handled, "handled", 7) > 0);
    rs_recorder_end();
}

TEST(an_event_of_a_handler_is_recorded_or_counted)
{
    struct tool_recording *recording;
    const struct tool_recording_facts *facts;
    struct tool_recording_event event;
    uint64_t next = 1, marks = 0, before = 0;

    assert_int_equal(in_child(write_under_signals, "signals"), 0);
    recording = opened("signals");
    facts = tool_recording_facts(recording);
    assert_int_equal(facts->damaged + facts->header.lost_events, 0);
    while (tool_recording_next(recording, &event)) {
        if (event.kind == RS_RECORDING_ALLOCATE) {
            assert_int_equal(event.address, next++);
            continue;
        }
        assert_true(event.address > before);
        before = event.address;
        marks++;
    }
    assert_true(marks + facts->header.missed_events >= 300);
    assert_true(before <= marks + facts->header.missed_events);
    tool_recording_close(recording);
}

static bool goes_back;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    static long calls;
    int result = __real_clock_gettime(clock, now);

    now->tv_sec += written_s;
    if (goes_back)
        now->tv_sec -= ++calls;
    return result;
}

static void write_by_a_bad_clock(const char *path)
{
    begin(path, MIB);
    rs_record(RS_RECORDING_ALLOCATE, 1, 1, place, 0);
    goes_back = true;
    for (uint64_t i = 2; i <= 1000; i++)
        rs_record(RS_RECORDING_ALLOCATE, i, i, place, 0);
    rs_recorder_end();
}

TEST(time_does_not_go_back_where_the_clock_does)
{
    struct tool_recording *recording;
    struct tool_recording_event event;
    uint64_t count = 0, first_ns = 0;

    assert_int_equal(in_child(write_by_a_bad_clock, "clock"), 0);
    recording = opened("clock");
    while (tool_recording_next(recording, &event)) {
        assert_int_equal(event.address, ++count);
        first_ns = first_ns ? first_ns : event.time_ns;
        assert_int_equal(event.time_ns, first_ns);
    }
    assert_int_equal(count, 1000);
    assert_true(tool_recording_facts(recording)->duration_ns < (uint64_t)1 << 40);
    tool_recording_close(recording);
}

static void write_by_a_thread_ahead(const char *path)
{
    const uint64_t hour_ns = 3600 * 1000000000ull, begin_ns = rs_clock_ns();

    rs_clock_note_slept(hour_ns);
    must(rs_clock_ns() >= begin_ns + hour_ns);
    begin(path, MIB);
    rs_record(RS_RECORDING_ALLOCATE, 1, 1, place, 0);
    rs_clock_note_slept(hour_ns);
    rs_record(RS_RECORDING_DEALLOCATE, 1, 1, place, 0);
    rs_recorder_end();
}

TEST(times_are_those_of_the_clock_in_a_thread_that_is_ahead_of_it)
{
    struct tool_recording *recording;
    const struct tool_recording_facts *facts;
    struct tool_recording_event event;

    assert_int_equal(in_child(write_by_a_thread_ahead, "ahead"), 0);
    recording = opened("ahead");
    facts = tool_recording_facts(recording);
    while (tool_recording_next(recording, &event))
        assert_true(facts->header.begun_ns + event.time_ns <= rs_clock_ns());
    assert_int_equal(facts->events, 2);
    assert_true(facts->header.begun_ns + facts->header.ended_ns <= rs_clock_ns());
    tool_recording_close(recording);
}

static void write_by_slow_copies(const char *path)
{
    begin(path, MIB);
    write_takes_s = 3600;
    for (uint64_t i = 0; i <= RS_RECORDING_EVENTS_EACH + 1; i++)
        rs_record(RS_RECORDING_ALLOCATE, i, i, place, 0);
    write_takes_s = 0;
    rs_recorder_end();
}

TEST(an_event_has_the_time_before_the_copy_that_makes_room_for_it)
{
    struct tool_recording *recording;
    struct tool_recording_event event;
    uint64_t count = 0;

    assert_int_equal(in_child(write_by_slow_copies, "copies"), 0);
    recording = opened("copies");
    while (tool_recording_next(recording, &event)) {
        assert_int_equal(event.address, count);
        assert_int_equal(event.time_ns >= 3600 * 1000000000ull, count++ > RS_RECORDING_EVENTS_EACH);
    }
    assert_int_equal(count, RS_RECORDING_EVENTS_EACH + 2);
    tool_recording_close(recording);
}

/* ---- what a process must not do to a recording ---- */

static void write_and_fork(const char *path)
{
    pid_t child;
    int status;

    write_some(path);
    child = fork();
    if (child == 0) {
        rs_record(RS_RECORDING_ALLOCATE, 1, 1, place, 0);
        must(rs_recorder_define(RS_RECORDING_NAME, NULL, 0, "child", 5) == 0);
        rs_recorder_end();
        _exit(0);
    }
    must(waitpid(child, &status, 0) == child && status == 0);
    rs_recorder_end();
}

TEST(a_forked_child_leaves_the_recording_alone)
{
    struct tool_recording *recording;

    assert_int_equal(in_child(write_and_fork, "forked"), 0);
    recording = opened("forked");
    assert_some(recording);
    tool_recording_close(recording);
}

static void write_twice(const char *path)
{
    begin(path, MIB);
    must(!rs_recorder_begin("other", MIB));
    must(access("other", F_OK) != 0);
    rs_recorder_end();
    rs_record(RS_RECORDING_ALLOCATE, 1, 1, place, 0);
}

TEST(a_process_has_one_recording)
{
    struct tool_recording *recording;

    assert_int_equal(in_child(write_twice, "one"), 0);
    recording = opened("one");
    assert_int_equal(counted(recording, RS_RECORDING_ALLOCATE), 0);
    assert_int_equal(tool_recording_facts(recording)->header.lost_events, 1);
    tool_recording_close(recording);
}

TEST(another_file_of_that_name_is_replaced)
{
    for (off_t bytes = 5; bytes <= RS_RECORDING_HEADER_BYTES;
         bytes += RS_RECORDING_HEADER_BYTES - 5) {
        FILE *file = fopen("notes", "w");
        assert_true(file && fputs("short", file) >= 0 && fclose(file) == 0);
        assert_int_equal(truncate("notes", bytes), 0);
        assert_int_equal(in_child(write_and_end, "notes"), 0);
        tool_recording_close(opened("notes"));
    }
}

static void begin_in_vain(const char *path)
{
    must(!rs_recorder_begin(path, MIB));
}

TEST(a_file_without_places_is_refused)
{
    assert_int_equal(in_child(begin_in_vain, "/dev/zero"), 0);
}

/* ---- damage ---- */

/* Changes a byte of the file; the second time it is as it was. */
static void damage(const char *path, off_t at)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);

    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

TEST(a_damaged_part_is_left_out_and_counted)
{
    /* The header of a chunk; and some definitions, or all events. */
    const off_t bytes[] = {32 + 100, 32 + 6 * sizeof(struct rs_recording_event)};

    assert_int_equal(in_child(write_and_end, "bad"), 0);
    for (int chunk = 0; chunk < 2; chunk++)
        for (off_t at = 0; at < bytes[chunk]; at++) {
            off_t place_in_file = RS_RECORDING_HEADER_BYTES + chunk * RS_RECORDING_CHUNK_BYTES + at;
            struct tool_recording *recording;
            size_t left;
            damage("bad", place_in_file);
            recording = opened("bad");
            left = counted(recording, RS_RECORDING_ALLOCATE);
            assert_int_equal(tool_recording_facts(recording)->damaged, 1);
            assert_true(left >= (chunk == 0 ? 2u : at < 32 ? 0u : 1u));
            tool_recording_close(recording);
            damage("bad", place_in_file);
        }
}

/* As a process leaves it that is killed when it begins the chunk anew. */
TEST(a_chunk_that_is_not_there_is_no_damage)
{
    struct tool_recording *recording;
    const uint64_t none = 0;
    int fd;

    assert_int_equal(in_child(write_and_end, "begun"), 0);
    fd = open("begun", O_RDWR);
    assert_int_equal(pwrite(fd, &none, sizeof(none),
                            RS_RECORDING_HEADER_BYTES + RS_RECORDING_CHUNK_BYTES +
                                (off_t)offsetof(struct rs_recording_chunk, check)),
                     sizeof(none));
    close(fd);
    recording = opened("begun");
    assert_int_equal(tool_recording_facts(recording)->events, 0);
    assert_int_equal(tool_recording_facts(recording)->damaged, 0);
    tool_recording_close(recording);
}

TEST(what_is_no_recording_is_refused)
{
    char reason[TOOL_REASON_BYTES];

    assert_null(tool_recording_open("missing", reason));
    assert_string_equal(reason, "No such file or directory");
    assert_null(tool_recording_open(".", reason));
    assert_string_equal(reason, "this is not a regular file");
    assert_null(tool_recording_open("/proc/self/exe", reason));
    assert_string_equal(reason,
                        "this is neither a recording of rmmshim nor a log in RMM's CSV format");
    assert_int_equal(in_child(write_and_end, "head"), 0);
    damage("head", 0x20);
    assert_null(tool_recording_open("head", reason));
    assert_string_equal(reason,
                        "the beginning of the file is damaged, so no part of it can be read");
}

TEST(a_file_that_was_cut_has_what_is_left)
{
    struct tool_recording *recording;

    assert_int_equal(in_child(write_threads, "cut"), 0);
    for (off_t bytes = 3 * RS_RECORDING_CHUNK_BYTES + 77; bytes > 100; bytes -= 1009) {
        char reason[TOOL_REASON_BYTES];
        assert_int_equal(truncate("cut", bytes), 0);
        recording = tool_recording_open("cut", reason);
        assert_int_equal(recording != NULL, bytes >= (off_t)sizeof(struct rs_recording_header));
        if (recording)
            assert_int_equal(counted(recording, RS_RECORDING_ALLOCATE),
                             tool_recording_facts(recording)->events);
        tool_recording_close(recording);
    }
}
