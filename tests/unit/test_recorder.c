/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings: what is written is read again, however the process ends and whatever the file has
 * gone through. */
#include "unit.h"

#include "fake_leaf.h"
#include "folder.h"
#include "recording/format.h"
#include "recording/recorder.h"
#include "recording/ring.h"
#include "tool/recording/recording.h"
#include "trace/line.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

GROUP_FIXTURE(enter_test_folder, leave_test_folder);

/* The reader says its lines by the tool's. */
void tool_say(const char *format, ...);
void tool_say(const char *format, ...)
{
    (void)format;
}

#define MIB ((size_t)1 << 20)

enum { CHUNK_EVENTS = RS_RECORDING_CONTENT_BYTES / sizeof(struct rs_recording_event) };

static const char *path_of(const char *name)
{
    static char path[400];

    snprintf(path, sizeof(path), "%s/%s", test_folder, name);
    return path;
}

/* Runs in a child, which has a recorder of its own, and returns how it ended. */
static int in_child(void (*run)(const char *path), const char *path)
{
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        run(path);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void put(struct rs_recorder *recorder, enum rs_recording_event_kind kind, uint64_t address,
                size_t size_bytes, const void *stream, unsigned stack)
{
    rs_recorder_put(recorder, &(struct rs_recorder_event){.kind = kind,
                                                          .address = address,
                                                          .size_bytes = size_bytes,
                                                          .stream = stream,
                                                          .stack = stack});
}

static void write_some(const char *path)
{
    struct rs_recorder *recorder = rs_recorder_get(path, MIB);
    unsigned stack = rs_recorder_stack(recorder, 3, 0, "pool");

    put(recorder, RS_RECORDING_ALLOCATE, 0x10000, 4096, NULL, stack);
    put(recorder, RS_RECORDING_ALLOCATE, 0x20000, 8192, (void *)0x5555, stack);
    (void)rs_recorder_mark(RS_RECORDING_PHASE_BEGIN, "step\n1");
    put(recorder, RS_RECORDING_FREE, 0x10000, 4096, NULL, stack);
    put(recorder, RS_RECORDING_REFUSED, 0, MIB << 20, NULL, stack);
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

static void assert_some(const struct recording *recording)
{
    assert_int_equal(recording->count, 5);
    assert_int_equal(recording->events[0].kind, RS_RECORDING_ALLOCATE);
    assert_int_equal(recording->events[0].address, 0x10000);
    assert_int_equal(recording->events[0].size_bytes, 4096);
    assert_int_equal(recording->events[0].partner, 3);
    assert_int_equal(recording_device(recording, &recording->events[0]), 3);
    assert_true(recording_thread(recording, &recording->events[0]) > 0);
    assert_int_equal(recording_stream(recording, &recording->events[1]), 0x5555);
    assert_int_equal(recording->events[1].partner, RECORDING_NO_EVENT);
    assert_string_equal(recording_name(recording, recording->events[2].site_or_name), "step?1");
    assert_int_equal(recording->events[3].partner, 0);
    assert_int_equal(recording->events[4].kind, RS_RECORDING_REFUSED);
    assert_int_equal(recording->events[4].size_bytes, MIB << 20);
    for (size_t i = 1; i < recording->count; i++)
        assert_true(recording->events[i].ns >= recording->events[i - 1].ns);
    assert_string_equal(recording->damage, "");
}

TEST(what_is_recorded_is_read)
{
    struct recording recording;

    assert_int_equal(in_child(write_and_end, path_of("whole")), 0);
    assert_true(recording_open(&recording, path_of("whole")));
    assert_some(&recording);
    recording_close(&recording);
    assert_int_equal(access(path_of("whole.part"), F_OK), -1);
}

TEST(a_recording_survives_a_kill)
{
    struct recording recording;

    assert_true(WIFSIGNALED(in_child(write_and_die, path_of("killed"))));
    assert_int_equal(access(path_of("killed.part"), F_OK), 0);
    assert_true(recording_open(&recording, path_of("killed")));
    assert_some(&recording);
    recording_close(&recording);
}

/* The first child's recording is still in its part, so the name is its own. */
TEST(another_process_has_a_name_of_its_own)
{
    struct stat before, after;

    assert_int_equal(stat(path_of("killed"), &before), 0);
    assert_int_equal(in_child(write_and_end, path_of("killed")), 0);
    assert_int_equal(stat(path_of("killed"), &after), 0);
    assert_int_equal(before.st_size, after.st_size);
}

/* ---- more than a chunk ---- */

enum { MANY = 40 * CHUNK_EVENTS };

static void write_many(const char *path)
{
    struct rs_recorder *recorder = rs_recorder_get(path, MIB);
    unsigned stack = rs_recorder_stack(recorder, 0, 0, "cuda");

    for (uint64_t i = 0; i < MANY; i++)
        put(recorder, i % 2 ? RS_RECORDING_FREE : RS_RECORDING_ALLOCATE, (i / 2 + 1) << 9,
            512 + i / 2, NULL, stack);
    rs_recorder_end();
}

TEST(the_newest_events_stay_within_the_size)
{
    struct recording recording;
    struct stat status;

    assert_int_equal(in_child(write_many, path_of("ring")), 0);
    assert_int_equal(stat(path_of("ring"), &status), 0);
    assert_true((size_t)status.st_size <= MIB);
    assert_true(recording_open(&recording, path_of("ring")));
    assert_string_equal(recording.damage, "");
    assert_int_equal(recording.count + recording.lost_events, MANY);
    assert_true(recording.count >= 13 * CHUNK_EVENTS);
    assert_int_equal(recording.events[recording.count - 1].address, (MANY / 2) << 9);
    assert_int_equal(recording_device(&recording, &recording.events[0]), 0);
    assert_non_null(recording_item(&recording.stacks, recording.events[0].stack));
    recording_close(&recording);
}

/* ---- threads ---- */

enum { THREADS = 6, OF_EACH = 5000 };

static struct rs_recorder *shared;

static void *write_one_thread(void *data)
{
    uint64_t base = ((uint64_t)(uintptr_t)data + 1) << 40;

    for (uint64_t i = 0; i < OF_EACH; i++) {
        put(shared, RS_RECORDING_ALLOCATE, base + (i << 9), 512, NULL, 1);
        put(shared, RS_RECORDING_FREE, base + (i << 9), 512, NULL, 1);
    }
    return NULL;
}

static struct rs_recorder *ending;
static _Atomic unsigned put_count[4];

static void *put_for_ever(void *data)
{
    _Atomic unsigned *count = data;

    for (uint64_t i = 1;; i++) {
        put(ending, RS_RECORDING_ALLOCATE, i << 9, 512, NULL, 1);
        atomic_fetch_add(count, 1);
    }
    return NULL;
}

static void wait_for_puts(unsigned more)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(put_count); i++) {
        unsigned before = atomic_load(&put_count[i]);
        while (atomic_load(&put_count[i]) - before < more)
            sched_yield();
    }
}

static void end_while_threads_put(const char *path)
{
    pthread_t threads[RS_ARRAY_LENGTH(put_count)];

    ending = rs_recorder_get(path, MIB);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(put_count); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, put_for_ever, &put_count[i]), 0);
    wait_for_puts(100);
    rs_recorder_end();
    wait_for_puts(100);
}

/* A program's threads may allocate until the process has ended. */
TEST(the_end_comes_while_threads_put)
{
    struct recording recording;

    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(in_child(end_while_threads_put, path_of("ending")), 0);
        assert_true(recording_open(&recording, path_of("ending")));
        assert_string_equal(recording.damage, "");
        recording_close(&recording);
        assert_int_equal(unlink(path_of("ending")), 0);
    }
}

/* Lines are kept for the life of the process, and call sites need them. */
TEST(marks_without_a_recording_take_nothing)
{
    char name[48];

    for (unsigned i = 0; i < 400000; i++) {
        snprintf(name, sizeof(name), "step %u of a training loop", i);
        assert_false(rs_recorder_mark(RS_RECORDING_MARK, name));
    }
    assert_non_null(rs_line_of("one more", sizeof("one more") - 1));
}

static void write_threads(const char *path)
{
    pthread_t threads[THREADS];

    shared = rs_recorder_get(path, 64 * MIB);
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, write_one_thread, (void *)i);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    rs_recorder_end();
}

TEST(no_thread_loses_an_event)
{
    struct recording recording;

    assert_int_equal(in_child(write_threads, path_of("threads")), 0);
    assert_true(recording_open(&recording, path_of("threads")));
    assert_int_equal(recording.count, 2 * THREADS * OF_EACH);
    assert_int_equal(recording.threads.count, THREADS);
    for (size_t i = 0; i < recording.count; i++)
        assert_int_not_equal(recording.events[i].partner, RECORDING_NO_EVENT);
    recording_close(&recording);
}

/* ---- a signal's handler ---- */

static void handle(int signal)
{
    (void)signal;
    put(shared, RS_RECORDING_MARK, 0, 0, NULL, 0);
}

/* A handler runs inside the write of a chunk: SIGXFSZ is the library's own there, so the write is
 * interrupted by a timer that fires all the time. */
static void write_interrupted(const char *path)
{
    struct itimerval timer = {{0, 20}, {0, 20}};

    shared = rs_recorder_get(path, 4 * MIB);
    put(shared, RS_RECORDING_MARK, 0, 0, NULL, 0);
    signal(SIGALRM, handle);
    setitimer(ITIMER_REAL, &timer, NULL);
    for (uint64_t i = 0; i < 400000; i++)
        put(shared, RS_RECORDING_ALLOCATE, (i + 1) << 9, 512, NULL, 1);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 0}}, NULL);
    rs_recorder_end();
}

TEST(an_event_of_a_handler_inside_is_counted_and_nobody_waits)
{
    struct recording recording;

    assert_int_equal(in_child(write_interrupted, path_of("handler")), 0);
    assert_true(recording_open(&recording, path_of("handler")));
    assert_string_equal(recording.damage, "");
    assert_true(recording.missed_events > 0);
    recording_close(&recording);
}

/* ---- a full disk ---- */

static void write_beyond_a_limit(const char *path)
{
    struct rlimit limit = {24 * RS_RECORDING_CHUNK_BYTES, 24 * RS_RECORDING_CHUNK_BYTES};
    struct rs_recorder *recorder = rs_recorder_get(path, 64 * MIB);

    setrlimit(RLIMIT_FSIZE, &limit);
    if (!freopen("/dev/null", "w", stderr))
        _exit(1);
    for (uint64_t i = 0; i < MANY; i++)
        put(recorder, RS_RECORDING_ALLOCATE, (i + 1) << 9, 512, NULL, 1);
    rs_recorder_end();
}

TEST(on_a_full_disk_the_newest_events_stay)
{
    struct recording recording;

    assert_int_equal(in_child(write_beyond_a_limit, path_of("full")), 0);
    assert_true(recording_open(&recording, path_of("full")));
    assert_string_equal(recording.damage, "");
    assert_true(recording.count >= 20 * CHUNK_EVENTS);
    assert_true(recording.lost_events > 0);
    assert_int_equal(recording.events[recording.count - 1].address, (uint64_t)MANY << 9);
    recording_close(&recording);
}

/* ---- damage ---- */

struct file {
    char *bytes;
    size_t length;
};

static struct file read_file(const char *path)
{
    FILE *stream = fopen(path, "rb");
    struct file file = {malloc(4 * MIB), 0};

    assert_non_null(stream);
    file.length = fread(file.bytes, 1, 4 * MIB, stream);
    fclose(stream);
    return file;
}

TEST(a_damaged_chunk_costs_only_itself)
{
    struct file file = read_file(path_of("ring"));
    struct recording whole, recording;

    assert_true(recording_parse(&whole, file.bytes, file.length, NULL, 0));
    file.bytes[5 * RS_RECORDING_CHUNK_BYTES + 1000] ^= 1;
    assert_true(recording_parse(&recording, file.bytes, file.length, NULL, 0));
    assert_string_equal(recording.damage, "the chunk at byte 327680 is damaged");
    assert_int_equal(whole.count - recording.count, CHUNK_EVENTS);
    recording_close(&whole);
    recording_close(&recording);
    free(file.bytes);
}

TEST(a_file_that_is_cut_has_what_is_there)
{
    struct file file = read_file(path_of("whole"));
    struct recording recording;
    size_t events = 0;

    for (size_t at = 0; at < file.length; at += RS_RECORDING_CHUNK_BYTES) {
        struct rs_recording_header header;
        memcpy(&header, file.bytes + at, sizeof(header));
        if (header.kind == RS_RECORDING_EVENTS)
            events = at;
    }
    assert_true(recording_parse(&recording, file.bytes,
                                events + sizeof(struct rs_recording_header) +
                                    2 * sizeof(struct rs_recording_event) + 7,
                                NULL, 0));
    assert_int_equal(recording.count, 2);
    assert_non_null(strstr(recording.damage, "is cut off"));
    recording_close(&recording);
    free(file.bytes);
}

TEST(other_files_are_said_to_be_none)
{
    static const struct {
        const char *text, *damage;
    } others[] = {{"", "is empty"},
                  {"hello, world\n", "is neither a recording nor a log of RMM's"},
                  {"RMMREC\r\n", "is neither a recording nor a log of RMM's"}};
    struct recording recording;

    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
        assert_false(recording_parse(&recording, others[i].text, strlen(others[i].text), NULL, 0));
        assert_string_equal(recording.damage, others[i].damage);
    }
}

TEST(a_newer_version_is_named)
{
    struct file file = read_file(path_of("whole"));
    struct recording recording;

    for (size_t at = 0; at < file.length; at += RS_RECORDING_CHUNK_BYTES)
        file.bytes[at + offsetof(struct rs_recording_header, version)]++;
    assert_false(recording_parse(&recording, file.bytes, file.length, NULL, 0));
    assert_non_null(strstr(recording.damage, "newer rmmshim"));
    free(file.bytes);
}

/* ---- RMM's log ---- */

#define LOG_HEADER "Thread,Time,Action,Pointer,Size,Stream\n"

TEST(a_log_is_read_over_midnight)
{
    static const char log[] = LOG_HEADER "7,23:59:59.999999,allocate,0x1000,512,0\n"
                                         "8,00:00:00.000001,allocate failure,(nil),99,0x55\n"
                                         "7,00:00:01.000000,free,0x1000,512,0\n";
    struct recording recording;

    assert_true(recording_parse(&recording, log, sizeof(log) - 1, NULL, 0));
    assert_string_equal(recording.damage, "");
    assert_int_equal(recording.count, 3);
    assert_int_equal(recording.events[1].ns, 2000);
    assert_int_equal(recording_stream(&recording, &recording.events[1]), 0x55);
    assert_int_equal(recording_thread(&recording, &recording.events[1]), 8);
    assert_int_equal(recording.events[2].partner, 0);
    recording_close(&recording);
}

TEST(a_log_is_used_up_to_the_damage)
{
    static const char log[] = LOG_HEADER "7,10:00:00.000000,allocate,0x1000,512,0\n"
                                         "7,10:00:00.000001,fre";
    struct recording recording;

    assert_true(recording_parse(&recording, log, sizeof(log) - 1, NULL, 0));
    assert_string_equal(recording.damage, "line 3 is no row of RMM's log");
    assert_int_equal(recording.count, 1);
    recording_close(&recording);
}

/* ---- blocks ---- */

struct steps {
    const struct recording *recording;
    char text[200];
};

static bool note(void *data, enum recording_step step, const struct recording_event *block,
                 uint64_t ns)
{
    struct steps *steps = data;
    size_t used = strlen(steps->text);

    (void)ns;
    snprintf(steps->text + used, sizeof(steps->text) - used, "%c%llx ", "+-."[step],
             (unsigned long long)block -> address);
    return true;
}

TEST(blocks_without_an_allocation_or_a_free_are_completed)
{
    static const char log[] = LOG_HEADER "7,10:00:00.000000,allocate,0x1000,512,0\n"
                                         "7,10:00:00.000001,free,0x2000,512,0\n"
                                         "7,10:00:00.000002,allocate,0x1000,512,0\n"
                                         "7,10:00:00.000003,free,0x1000,512,0\n";
    struct recording recording;
    struct steps steps = {.text = ""};

    assert_true(recording_parse(&recording, log, sizeof(log) - 1, NULL, 0));
    assert_true(recording_walk(&recording, note, &steps));
    assert_string_equal(steps.text, "+2000 +1000 -2000 -1000 +1000 -1000 ");
    recording_close(&recording);
}

TEST(a_free_that_another_thread_recorded_too_late_is_put_before)
{
    static const char log[] = LOG_HEADER "7,10:00:00.000000,allocate,0x1000,512,0\n"
                                         "8,10:00:00.000001,allocate,0x1000,512,0\n"
                                         "7,10:00:00.000001,free,0x1000,512,0\n"
                                         "8,10:00:00.000002,free,0x1000,512,0\n";
    struct recording recording;

    assert_true(recording_parse(&recording, log, sizeof(log) - 1, NULL, 0));
    assert_int_equal(recording.implied_count, 0);
    assert_int_equal(recording.events[0].partner, 1);
    assert_int_equal(recording.events[2].partner, 3);
    recording_close(&recording);
}

/* ---- the resource ---- */

TEST(a_sample_has_a_call_site_for_its_share_of_bytes)
{
    struct fake_leaf *leaf = fake_leaf_create((size_t)1 << 50);
    struct rs_allocation allocation;
    struct recording recording;
    char option[450];
    size_t sites = 0;
    struct rs_mr *mr;

    snprintf(option, sizeof(option), "path=%s", path_of("sampled"));
    mr = make_resource(&rs_mr_descriptor_recording, &leaf->base, OPTIONS(option, "stacks=4096"));
    for (unsigned i = 0; i < 64; i++) {
        assert_int_equal(rs_mr_allocate(mr, 1024, NULL, &allocation), CUDA_SUCCESS);
        assert_int_equal(rs_mr_deallocate(mr, &allocation, NULL), CUDA_SUCCESS);
    }
    rs_mr_destroy(mr, false);
    rs_recorder_end();
    assert_true(recording_open(&recording, path_of("sampled")));
    assert_int_equal(recording.count, 129);
    for (size_t i = 0; i < recording.count; i++)
        sites += recording.events[i].kind == RS_RECORDING_ALLOCATE &&
                 recording_site(&recording, recording.events[i].site_or_name).count > 0;
    assert_int_equal(sites, 16);
    recording_close(&recording);
}
