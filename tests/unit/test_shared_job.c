/* SPDX-License-Identifier: Apache-2.0 */
/* What a process asks of the `run` above it, which is a thread here. */
#include "unit.h"

#include "base/process.h"
#include "flying_clock.h"
#include "shared/job.h"
#include "shared/job_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define TOKEN "fedcba98765432100123456789abcdef"

/* What the thread does with a request, and what it saw. */
struct run {
    int listener;
    enum { GRANTS, REFUSES, GOES, IS_SILENT } how;
    int gives; /* a descriptor, or -1 */
    int connection;
    struct rs_job_request request;
    uint64_t inode; /* of the file that came; 0: none did */
};

static char name[RS_JOB_WORD_BYTES];
static _Atomic uint32_t *file;
static int file_fd;
static bool is_silent; /* no answer will come */

int __real_poll(struct pollfd *files, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *files, nfds_t count, int timeout_ms);

/* The thread may come late on a busy machine.  An answer that must come is waited for until it
 * does. */
int __wrap_poll(struct pollfd *files, nfds_t count, int timeout_ms)
{
    assert_in_range(timeout_ms, RS_JOB_ANSWER_MS, RS_JOB_ANSWER_MS + 1);
    return __real_poll(files, count, is_silent ? timeout_ms : -1);
}

static void *serve(void *data)
{
    struct run *run = data;
    uint32_t answer = run->how == GRANTS;
    struct stat status;
    int fd;

    run->connection = accept(run->listener, NULL, NULL);
    if (rs_job_receive(run->connection, &run->request, sizeof(run->request), &fd) == 0 && fd >= 0) {
        run->inode = fstat(fd, &status) == 0 ? status.st_ino : 0;
        close(fd);
    }
    if (run->how == GRANTS || run->how == REFUSES)
        (void)rs_job_send(run->connection, &answer, sizeof(answer), run->gives);
    if (run->how != IS_SILENT)
        close(run->connection);
    return NULL;
}

static int listen_at(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    memcpy(address.sun_path + 1, name, strlen(name));
    assert_int_equal(bind(fd, (const struct sockaddr *)&address,
                          (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))),
                     0);
    assert_int_equal(listen(fd, 1), 0);
    return fd;
}

static int set_up(void **state)
{
    struct stat status;
    char text[256];

    (void)state;
    atomic_store(&clock_stands, true); /* however long it takes to reach the thread */
    snprintf(name, sizeof(name), "%024x%08x", 4711, (unsigned)getpid());
    file_fd = memfd_create("job", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file_fd < 0 || ftruncate(file_fd, sizeof(*file)) != 0 || fstat(file_fd, &status) != 0 ||
        fcntl(file_fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0)
        return -1;
    file = mmap(NULL, sizeof(*file), PROT_READ | PROT_WRITE, MAP_SHARED, file_fd, 0);
    snprintf(text, sizeof(text), "%s:" TOKEN ":%d:%d:%llu:%lld", name, (int)getpid(), file_fd,
             (unsigned long long)status.st_ino, rs_process_start_ticks(0));
    return file == MAP_FAILED ? -1 : setenv(RS_JOB_VARIABLE, text, 1);
}

static int tear_down(void **state)
{
    (void)state;
    munmap(file, sizeof(*file));
    return close(file_fd);
}

FIXTURE(set_up, tear_down);

/* Asks a thread that is such a run. */
static int ask(struct run *run, enum rs_job_wish wish, int fd, int *received)
{
    pthread_t thread;
    int result;

    is_silent = run->how == IS_SILENT;
    run->listener = listen_at();
    assert_int_equal(pthread_create(&thread, NULL, serve, run), 0);
    result = rs_run_ask(wish, 0, fd, received);
    pthread_join(thread, NULL);
    close(run->listener);
    if (run->how == IS_SILENT)
        close(run->connection);
    return result;
}

static uint64_t inode_of(int fd)
{
    struct stat status;

    assert_int_equal(fstat(fd, &status), 0);
    return status.st_ino;
}

TEST(a_page_is_handed_over)
{
    struct run run = {.how = GRANTS, .gives = -1};

    assert_int_equal(ask(&run, RS_JOB_HOLD_PAGE, file_fd, NULL), 0);
    assert_int_equal(run.request.wish, RS_JOB_HOLD_PAGE);
    assert_string_equal(run.request.token, TOKEN);
    assert_string_equal(run.request.layout, RS_JOB_LAYOUT);
    assert_true(run.inode == inode_of(file_fd));
    assert_int_equal(atomic_load(file), 0);
}

TEST(a_process_without_a_page_says_so)
{
    struct run run = {.how = REFUSES, .gives = -1};

    assert_int_equal(ask(&run, RS_JOB_HOLD_PAGE, -1, NULL), -EACCES);
    assert_true(run.inode == 0);
}

TEST(the_file_of_the_limit_comes_back)
{
    struct run run = {.how = GRANTS, .gives = file_fd};
    int received = -1;

    assert_int_equal(ask(&run, RS_JOB_GIVE_LIMIT, -1, &received), 0);
    assert_true(received >= 0 && received != file_fd);
    assert_true(inode_of(received) == inode_of(file_fd));
    assert_int_equal(fcntl(received, F_GETFD), FD_CLOEXEC);
    close(received);
}

TEST(a_descriptor_that_is_not_wanted_is_closed)
{
    struct run run = {.how = GRANTS, .gives = file_fd};
    int before = dup(file_fd), after;

    close(before);
    assert_int_equal(ask(&run, RS_JOB_HOLD_PAGE, file_fd, NULL), 0);
    after = dup(file_fd);
    assert_int_equal(after, before);
    close(after);
}

/* The message itself comes. */
TEST(a_descriptor_without_room)
{
    int ends[2], received, first_free, result;
    struct rlimit limit, few;
    char message = 'x';

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
    assert_int_equal(rs_job_send(ends[0], &message, sizeof(message), file_fd), 0);
    message = 0;
    first_free = dup(file_fd);
    close(first_free);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){(rlim_t)first_free, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    result = rs_job_receive(ends[1], &message, sizeof(message), &received);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0); /* before anything can fail */
    assert_int_equal(result, -EMFILE);
    assert_int_equal(message, 'x');
    assert_int_equal(received, -1);
    close(ends[0]);
    close(ends[1]);
}

TEST(a_run_that_goes_before_it_answers)
{
    struct run run = {.how = GOES, .gives = -1};

    assert_int_equal(ask(&run, RS_JOB_HOLD_PAGE, file_fd, NULL), -ECONNRESET);
    assert_int_equal(atomic_load(file), 0);
}

TEST(a_run_that_is_stopped)
{
    struct run run = {.how = IS_SILENT, .gives = -1};

    assert_int_equal(ask(&run, RS_JOB_HOLD_PAGE, file_fd, NULL), -ETIMEDOUT);
}

TEST(who_does_not_reach_the_socket_says_so_in_the_file)
{
    assert_int_equal(rs_run_ask(RS_JOB_HOLD_PAGE, 0, file_fd, NULL), -ESTALE);
    assert_int_equal(atomic_load(file), 1);
    assert_int_equal(rs_run_ask(RS_JOB_GIVE_LIMIT, 0, -1, NULL), -ESTALE);
    assert_int_equal(atomic_load(file), 1);
}

/* Not where the answer is lost: then the `run` may have the page. */
TEST(whose_request_cannot_be_sent_says_so_in_the_file)
{
    struct run run = {.how = REFUSES, .gives = -1};

    assert_int_equal(ask(&run, RS_JOB_HOLD_PAGE, 1000000, NULL), -EBADF);
    assert_int_equal(atomic_load(file), 1);
    assert_int_equal(ask(&run, RS_JOB_GIVE_LIMIT, 1000000, NULL), -EBADF);
    assert_int_equal(atomic_load(file), 1);
}

/* The name of a `run` that is gone. */
TEST(another_process_with_the_name_is_told_nothing)
{
    struct run run = {.how = GRANTS, .gives = file_fd};
    char *variable = strdup(getenv(RS_JOB_VARIABLE)), *start = strrchr(variable, ':');
    int received = -1;

    strcpy(start, ":1");
    setenv(RS_JOB_VARIABLE, variable, 1);
    assert_int_equal(ask(&run, RS_JOB_GIVE_LIMIT, -1, &received), -ESTALE);
    assert_int_equal(received, -1);
    assert_string_equal(run.request.token, "");
    free(variable);
}

TEST(without_a_run_nothing_is_asked)
{
    unsetenv(RS_JOB_VARIABLE);
    assert_int_equal(rs_run_ask(RS_JOB_HOLD_PAGE, 0, file_fd, NULL), -ENOENT);
    setenv(RS_JOB_VARIABLE, "999999:3:17", 1); /* of a release before */
    assert_int_equal(rs_run_ask(RS_JOB_HOLD_PAGE, 0, file_fd, NULL), -ENOENT);
}

TEST(a_process_that_is_gone_leaves_an_empty_text)
{
    struct {
        char before[8], text[RS_PROCESS_TEXT_BYTES], after[8];
    } read;

    memset(&read, 'x', sizeof(read));
    assert_false(rs_process_read(999999999, "stat", read.text)); /* above every process's number */
    assert_int_equal(read.text[0], '\0');
    for (size_t i = 0; i < sizeof(read.before); i++) {
        assert_int_equal(read.before[i], 'x');
        assert_int_equal(read.after[i], 'x');
    }
}
