/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: one write each, cut, capped, errno kept. */
#include "unit.h"

#include "base/check.h"
#include "base/log.h"
#include "until.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

enum { CAPTURE_BYTES = 16384, PIPE_CAPACITY = 65536 };

/* Runs `say` in a child, whose cap of lines is its own, and returns what it wrote to stderr.
 * Each write() is one packet; packets are joined with a '|' in front. */
static const char *stderr_of(void (*say)(void))
{
    static char captured[CAPTURE_BYTES];
    size_t length = 0;
    int pair[2], status;
    pid_t child;

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pair[1], STDERR_FILENO);
        close(pair[0]);
        close(pair[1]);
        say();
        _exit(0);
    }
    close(pair[1]);
    for (;;) {
        ssize_t got = recv(pair[0], captured + length + 1, sizeof(captured) - length - 2, 0);
        if (got <= 0)
            break;
        captured[length] = '|';
        length += (size_t)got + 1;
    }
    captured[length] = '\0';
    close(pair[0]);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    return captured;
}

static unsigned count_of(const char *text, const char *part)
{
    unsigned count = 0;

    while ((text = strstr(text, part)) != NULL) {
        text += strlen(part);
        count++;
    }
    return count;
}

static void say_one(void)
{
    rs_log("%s is %d", "answer", 42);
}

TEST(a_line_has_prefix_and_newline_and_is_one_write)
{
    const char *text = stderr_of(say_one);

    assert_memory_equal(text, "|rmmshim[", 9);
    assert_non_null(strstr(text, "]: answer is 42\n"));
    assert_int_equal(count_of(text, "|"), 1);
}

static void say_long(void)
{
    char text[5000];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    rs_log("%s", text);
    rs_log("next");
}

TEST(a_long_line_is_cut_and_still_ends)
{
    const char *text = stderr_of(say_long);
    const char *end = strchr(text, '\n');

    assert_non_null(end);
    assert_in_range(end - text, 900, RS_LOG_LINE_BYTES);
    assert_int_equal(count_of(text, "|"), 2);
    assert_int_equal(count_of(text, "\n"), 2);
    assert_non_null(strstr(text, "next\n"));
}

static void say_too_much(void)
{
    for (int i = 0; i < 100; i++)
        rs_log("line %d.", i);
    rs_log_asked("asked for");
}

TEST(lines_are_capped_but_not_those_asked_for)
{
    const char *text = stderr_of(say_too_much);
    char last[32];

    assert_int_equal(count_of(text, "line "), RS_LOG_LINES_MAX);
    snprintf(last, sizeof(last), "line %d.", RS_LOG_LINES_MAX - 1);
    assert_non_null(strstr(text, last));
    assert_int_equal(count_of(text, "no further messages"), 1);
    assert_int_equal(count_of(text, "asked for"), 1);
    assert_int_equal(count_of(text, "\n"), RS_LOG_LINES_MAX + 2);
}

static void *say_some(void *data)
{
    (void)data;
    for (int i = 0; i < 20; i++)
        rs_log("line %d.", i);
    return NULL;
}

static void say_from_threads(void)
{
    pthread_t threads[8];

    for (size_t i = 0; i < RS_ARRAY_LENGTH(threads); i++)
        if (pthread_create(&threads[i], NULL, say_some, NULL) != 0)
            _exit(1);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(threads); i++)
        pthread_join(threads[i], NULL);
}

TEST(the_cap_holds_for_all_threads_together)
{
    const char *text = stderr_of(say_from_threads);

    assert_int_equal(count_of(text, "line "), RS_LOG_LINES_MAX);
    assert_int_equal(count_of(text, "no further messages"), 1);
}

static void say_late(void)
{
    static struct rs_late_line lines[3] = {{.text = " is old"}, {.text = " is new"}, {.text = "!"}};

    for (int i = 0; i < 2; i++) {
        rs_log_once_serving(&lines[0], "First");
        rs_log_once_serving(&lines[1], "Second");
    }
    rs_log("before");
    rs_log_serving();
    rs_log_once_serving(&lines[1], "Third");
    rs_log("between");
    for (int i = 0; i < 2; i++)
        rs_log_once_serving(&lines[2], "Fourth");
}

TEST(each_late_line_is_said_once_and_not_before_serving)
{
    const char *text = stderr_of(say_late);

    assert_int_equal(count_of(text, "\n"), 5);
    assert_true(strstr(text, "First is old\n") > strstr(text, "before"));
    assert_true(strstr(text, "Second is new\n") > strstr(text, "before"));
    assert_true(strstr(text, "between") > strstr(text, "First"));
    assert_true(strstr(text, "Fourth!\n") > strstr(text, "between"));
}

static void say_without_stderr(void)
{
    close(STDERR_FILENO);
    errno = ERANGE;
    rs_log("to nobody");
    if (errno != ERANGE)
        _exit(1);
    rs_log_asked("to nobody");
    if (errno != ERANGE)
        _exit(2);
}

TEST(errno_is_kept_and_a_closed_stderr_is_no_harm)
{
    assert_string_equal(stderr_of(say_without_stderr), "");
}

static void say_once_many_times(void)
{
    static bool said, said_too;

    for (int i = 0; i < 10; i++) {
        if (rs_log_once(&said))
            rs_log("first");
        if (rs_log_once(&said_too))
            rs_log("second");
    }
}

TEST(once_means_once_for_each_flag)
{
    const char *text = stderr_of(say_once_many_times);

    assert_int_equal(count_of(text, "first"), 1);
    assert_int_equal(count_of(text, "second"), 1);
}

static atomic_uint interruptions;
static atomic_bool all_is_read;

static void interrupted(int signal_number)
{
    (void)signal_number;
    atomic_fetch_add(&interruptions, 1);
}

/* Signals that come close together are one, so a few are there for a writer that sleeps. */
static void wait_for_interruptions(unsigned more)
{
    unsigned before = atomic_load(&interruptions);

    (void)UNTIL(atomic_load(&interruptions) - before >= more);
}

static bool is_full(int fd)
{
    int bytes = 0;

    return ioctl(fd, FIONREAD, &bytes) == 0 && bytes == PIPE_CAPACITY;
}

/* The writer is interrupted before each part that is read. */
static void *drain_slowly(void *data)
{
    int fd = *(int *)data;
    size_t total = 0;
    char bytes[PIPE_CAPACITY / 8];
    ssize_t got;

    (void)UNTIL(is_full(fd));
    wait_for_interruptions(10);
    while ((got = read(fd, bytes, sizeof(bytes))) > 0) {
        total += (size_t)got;
        wait_for_interruptions(2);
    }
    atomic_store(&all_is_read, true);
    return (void *)total;
}

static void *interrupt_often(void *data)
{
    unsigned naps = 0;

    while (!atomic_load(&all_is_read) && until_nap(&naps))
        pthread_kill(*(pthread_t *)data, SIGUSR1);
    return NULL;
}

/* A write to a full pipe sleeps, is interrupted, and fails with EINTR; one that has written a part
 * returns short. */
TEST(write_all_writes_all_over_interruptions)
{
    static char bytes[1 << 20];
    struct sigaction action = {.sa_handler = interrupted}; /* no SA_RESTART */
    pthread_t self = pthread_self(), reader, interrupter;
    void *total;
    int ends[2];

    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pthread_create(&reader, NULL, drain_slowly, &ends[0]), 0);
    assert_int_equal(pthread_create(&interrupter, NULL, interrupt_often, &self), 0);
    assert_int_equal(rs_write_all(ends[1], bytes, PIPE_CAPACITY), 0);
    assert_int_equal(rs_write_all(ends[1], bytes, sizeof(bytes) - PIPE_CAPACITY), 0);
    close(ends[1]);
    pthread_join(reader, &total);
    pthread_join(interrupter, NULL);
    assert_int_equal((size_t)total, sizeof(bytes));
    close(ends[0]);
}

TEST(write_all_says_why_it_failed)
{
    int full = open("/dev/full", O_WRONLY);

    assert_int_equal(rs_write_all(-1, "x", 1), -EBADF);
    assert_int_equal(rs_write_all(-1, "", 0), 0);
    assert_true(full >= 0);
    assert_int_equal(rs_write_all(full, "x", 1), -ENOSPC);
    close(full);
}

/* Runs it in a child, where signals and limits are its own.  It returns 0 if all is right. */
static void passes_in_child(int (*body)(void))
{
    int status = 0;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0)
        _exit(body());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, 0);
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* A pipe that nobody reads any more, as stderr. */
static void lose_reader(void)
{
    int ends[2];

    if (pipe(ends) != 0 || dup2(ends[1], STDERR_FILENO) < 0)
        _exit(99);
    close(ends[0]);
    close(ends[1]);
}

static bool is_pending(int signal_number)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, signal_number) == 1;
}

static bool is_blocked(int signal_number)
{
    sigset_t blocked;

    return pthread_sigmask(SIG_BLOCK, NULL, &blocked) == 0 &&
           sigismember(&blocked, signal_number) == 1;
}

static void block(int signal_number)
{
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, signal_number);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

static int say_to_lost_reader(void)
{
    lose_reader();
    errno = ERANGE;
    rs_log("to nobody");
    rs_log_asked("to nobody");
    if (errno != ERANGE)
        return 1;
    return is_blocked(SIGPIPE) ? 2 : is_pending(SIGPIPE) ? 3 : 0;
}

static int say_with_signal_blocked(void)
{
    lose_reader();
    block(SIGPIPE);
    rs_log("to nobody");
    if (is_pending(SIGPIPE) || !is_blocked(SIGPIPE))
        return 1;
    raise(SIGPIPE); /* the program's own stays */
    rs_log("to nobody");
    return is_pending(SIGPIPE) && is_blocked(SIGPIPE) ? 0 : 2;
}

static _Atomic int handled;

static void handle(int signal_number)
{
    handled = signal_number;
}

static int say_with_handler(void)
{
    struct sigaction action = {.sa_handler = handle};

    lose_reader();
    sigaction(SIGPIPE, &action, NULL);
    rs_log("to nobody");
    if (handled)
        return 1;
    raise(SIGPIPE);
    return handled == SIGPIPE ? 0 : 2;
}

TEST(a_reader_that_is_gone_raises_no_signal)
{
    passes_in_child(say_to_lost_reader);
    passes_in_child(say_with_signal_blocked);
    passes_in_child(say_with_handler);
}

static int write_past_limit(void)
{
    static const struct rlimit limit = {10, 10};
    int file = fileno(tmpfile());
    char bytes[100] = "";

    if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
        return 1;
    if (rs_write_all(file, bytes, sizeof(bytes)) != -EFBIG)
        return 2;
    block(SIGXFSZ);
    if (rs_write_all(file, bytes, sizeof(bytes)) != -EFBIG || is_pending(SIGXFSZ))
        return 3;
    raise(SIGXFSZ);
    return rs_write_all(file, bytes, sizeof(bytes)) == -EFBIG && is_pending(SIGXFSZ) ? 0 : 4;
}

TEST(a_file_that_may_not_grow_raises_no_signal)
{
    passes_in_child(write_past_limit);
}

/* A terminal that stops who writes to it from the background (stty tostop). */
static int write_from_background(void)
{
    int host = posix_openpt(O_RDWR | O_NOCTTY), terminal, status;
    struct termios settings;
    pid_t child;

    setsid();
    if (host < 0 || grantpt(host) != 0 || unlockpt(host) != 0)
        return 1;
    terminal = open(ptsname(host), O_RDWR); /* which is this session's now */
    if (terminal < 0 || tcgetattr(terminal, &settings) != 0)
        return 2;
    settings.c_lflag |= TOSTOP;
    tcsetattr(terminal, TCSANOW, &settings);
    child = fork();
    if (child == 0) {
        setpgid(0, 0);
        _exit(rs_write_all(terminal, "x", 1) == 0 ? 0 : 3);
    }
    if (waitpid(child, &status, WUNTRACED) != child)
        return 4;
    if (!WIFSTOPPED(status))
        return WEXITSTATUS(status);
    kill(child, SIGKILL);
    return 5;
}

TEST(a_terminal_stops_nobody_who_writes_to_it)
{
    passes_in_child(write_from_background);
}
