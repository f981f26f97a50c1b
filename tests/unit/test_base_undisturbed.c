/* SPDX-License-Identifier: Apache-2.0 */
/* No wrapped function acts on a cancellation: each returns in a thread with a cancellation pending,
 * which acts at the thread's own next cancellation point. */
#include "unit.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/output.h"
#include "base/process.h"
#include "base/request.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_ALONE);
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static bool woken;

static void write_line(void)
{
    rs_log_asked("a line");
}

static void open_output(void)
{
    int fd = rs_path_open_output("/dev/null");

    assert_true(fd >= 0);
    assert_int_equal(rs_write_all(fd, "x", 1), 0);
    rs_file_close(fd);
}

static void read_file(void)
{
    char bytes[16];
    int fd = rs_file_open("/proc/self/stat");

    assert_true(fd >= 0);
    assert_true(rs_file_read(fd, bytes, sizeof(bytes), 0) > 0);
    assert_int_equal(rs_file_read(fd, bytes, 1, 2), 1);
    rs_file_close(fd);
}

static void ask_for_start(void)
{
    assert_true(rs_process_start_ticks(0) > 0);
}

static void nap(void)
{
    rs_nap(1000);
    rs_pause(2000);
}

static void wait_for_nothing(void)
{
    rs_mutex_lock(&lock);
    assert_int_equal(rs_condition_wait_until_ns(&condition, &lock, 1), ETIMEDOUT);
    rs_mutex_unlock(&lock);
}

static void *wake(void *data)
{
    rs_mutex_lock(&lock);
    woken = true;
    pthread_cond_signal(&condition);
    rs_mutex_unlock(&lock);
    return data;
}

static void wait_for_other(void)
{
    pthread_t other;

    rs_mutex_lock(&lock);
    woken = false;
    assert_int_equal(pthread_create(&other, NULL, wake, NULL), 0);
    while (!woken)
        rs_condition_wait(&condition, &lock);
    rs_mutex_unlock(&lock);
    pthread_detach(other);
}

/* All that happens in a request, the driver's calls too. */
static void request(void)
{
    rs_request_begin();
    rs_request_begin();
    rs_request_end();
    pthread_testcancel();
    rs_request_end();
}

static void nest(void)
{
    struct rs_uncancelled outer, inner;

    rs_uncancelled_begin(&outer);
    rs_uncancelled_begin(&inner);
    rs_uncancelled_end(&inner);
    pthread_testcancel();
    rs_uncancelled_end(&outer);
}

struct course {
    void (*call)(void);
    bool came_back, went_on;
};

static void *run_cancelled(void *data)
{
    struct course *course = data;

    pthread_cancel(pthread_self());
    course->call();
    course->came_back = true;
    pthread_testcancel();
    course->went_on = true;
    return NULL;
}

TEST(each_comes_back_and_the_thread_is_cancelled_then)
{
    static void (*const calls[])(void) = {
        write_line,       open_output,    read_file, ask_for_start, nap,
        wait_for_nothing, wait_for_other, request,   nest,
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(calls); i++) {
        struct course course = {calls[i], false, false};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, run_cancelled, &course), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        if (!course.came_back || course.went_on)
            fail_msg("call %zu: %s", i, course.came_back ? "went on" : "did not come back");
    }
}
