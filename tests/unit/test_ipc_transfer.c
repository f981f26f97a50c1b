/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors from an exporter to an importer, both in this process. */
#include "unit.h"

#include "base/file.h"
#include "base/process.h"
#include "base/thread.h"
#include "descriptors.h"
#include "ipc/transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PIECES = 20, GENERATION = 7, RIGHT = 100, WRONG = 200 };

/* ---- the system ---- */

static atomic_uint sockets, failing_socket; /* how many were asked for, and which one is refused */
static int socket_error, accept_error;      /* how; 0: none is refused */
static const char *reason;                  /* why an open was refused last */
static bool refuses_pipes, refuses_threads, refuses_numbers, shows_nothing;
static bool shows_strangers;
static uint64_t ahead_s; /* of the clock, a second for each look that shows nothing or a stranger */

int __real_accept4(int listener, struct sockaddr *address, socklen_t *bytes, int flags);
int __real_clock_gettime(clockid_t clock, struct timespec *now);
ssize_t __real_getrandom(void *into, size_t bytes, unsigned flags);
int __real_pipe2(int ends[2], int flags);
int __real_poll(struct pollfd *files, nfds_t count, int timeout_ms);
int __real_socket(int domain, int type, int protocol);
bool __real_rs_thread_start(void *(*run)(void *));
void __wrap_rs_ipc_say_refused(bool *said, const char *why);
int __wrap_accept4(int listener, struct sockaddr *address, socklen_t *bytes, int flags);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
ssize_t __wrap_getrandom(void *into, size_t bytes, unsigned flags);
int __wrap_pipe2(int ends[2], int flags);
int __wrap_poll(struct pollfd *files, nfds_t count, int timeout_ms);
int __wrap_socket(int domain, int type, int protocol);
bool __wrap_rs_thread_start(void *(*run)(void *));

static int refuse(int error)
{
    errno = error;
    return -1;
}

int __wrap_accept4(int listener, struct sockaddr *address, socklen_t *bytes, int flags)
{
    if (shows_strangers && ++ahead_s < 100)
        return memfd_create("no connection of the exporter's", MFD_CLOEXEC);
    if (shows_strangers)
        return refuse(EMFILE);
    return accept_error ? refuse(accept_error) : __real_accept4(listener, address, bytes, flags);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);

    now->tv_sec += (time_t)ahead_s;
    return result;
}

ssize_t __wrap_getrandom(void *into, size_t bytes, unsigned flags)
{
    return refuses_numbers ? refuse(ENOSYS) : __real_getrandom(into, bytes, flags);
}

int __wrap_pipe2(int ends[2], int flags)
{
    return refuses_pipes ? refuse(ENFILE) : __real_pipe2(ends, flags);
}

int __wrap_poll(struct pollfd *files, nfds_t count, int timeout_ms)
{
    if (shows_strangers)
        return 1;
    if (!shows_nothing)
        return __real_poll(files, count, timeout_ms);
    ahead_s++;
    return 0;
}

int __wrap_socket(int domain, int type, int protocol)
{
    return ++sockets == failing_socket ? refuse(socket_error)
                                       : __real_socket(domain, type, protocol);
}

void __wrap_rs_ipc_say_refused(bool *said, const char *why)
{
    (void)said;
    reason = why;
}

bool __wrap_rs_thread_start(void *(*run)(void *))
{
    return !refuses_threads && __real_rs_thread_start(run);
}

static int allow_all(void **state)
{
    (void)state;
    sockets = failing_socket = 0;
    socket_error = EMFILE;
    accept_error = 0;
    refuses_pipes = refuses_threads = refuses_numbers = shows_nothing = false;
    shows_strangers = false;
    return 0;
}

FIXTURE(allow_all, NULL);

/* A file whose size tells which one it is. */
static int make_file(int size)
{
    int fd = memfd_create("piece", MFD_CLOEXEC);

    assert_int_equal(ftruncate(fd, size), 0);
    return fd;
}

static int size_of(int fd)
{
    struct stat status;

    assert_int_equal(fstat(fd, &status), 0);
    close(fd);
    return (int)status.st_size;
}

/* ---- a table of this process ---- */

static struct rs_ipc_header *header;
static struct rs_ipc_handle handle;

static struct rs_transfer begin(void)
{
    static unsigned char tables;
    CUresult result = CUDA_SUCCESS;
    int fd = memfd_create(RS_IPC_FILE_NAME, MFD_CLOEXEC);

    assert_int_equal(ftruncate(fd, RS_IPC_FILE_BYTES), 0);
    header = mmap(NULL, sizeof(*header), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(header != MAP_FAILED);
    memcpy(header->magic, rs_ipc_magic, sizeof(header->magic));
    header->nonce[0] = ++tables;
    handle = (struct rs_ipc_handle){.process_namespace = rs_process_namespace(),
                                    .start_ticks = rs_process_start_ticks(0),
                                    .process = getpid(),
                                    .fd = fd,
                                    .generation = GENERATION};
    memcpy(handle.magic, rs_ipc_magic, sizeof(handle.magic));
    memcpy(handle.nonce, header->nonce, sizeof(handle.nonce));
    return (struct rs_transfer){
        .exporter = rs_exporter_use(&handle, &result), .handle = &handle, .connection = -1};
}

/* Makes a pipe by which this test is asked, and names it in the table. */
static void name_pipe(int ends[2])
{
    struct stat status;

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fstat(ends[1], &status), 0);
    header->pipe.fd = ends[1];
    header->pipe.device = status.st_dev;
    header->pipe.inode = status.st_ino;
}

static int make_piece(uint32_t slot, uint32_t generation, uint32_t piece)
{
    return slot == 0 && generation == GENERATION && piece < PIECES ? make_file((int)piece + 1) : -1;
}

/* The one that the library keeps of its pipe. */
static int read_end(void)
{
    struct stat status;
    int fd = RS_DESCRIPTOR_HIGH;

    while (fstat(fd, &status) != 0 || !S_ISFIFO(status.st_mode) ||
           (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
        fd++;
    return fd;
}

/* ---- tests ---- */

/* Before the thread runs, which then runs for good. */
TEST(an_exporter_that_could_not_answer_shares_nothing)
{
    unsigned before;

    begin();
    before = open_descriptors();
    failing_socket = 1;
    assert_int_equal(rs_transfer_start(&header->pipe, make_piece), CUDA_ERROR_OUT_OF_MEMORY);
    refuses_pipes = true;
    assert_int_equal(rs_transfer_start(&header->pipe, make_piece), CUDA_ERROR_OUT_OF_MEMORY);
    refuses_pipes = false;
    refuses_threads = true;
    assert_int_equal(rs_transfer_start(&header->pipe, make_piece), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(open_descriptors(), before);
}

TEST(all_pieces_come_in_order)
{
    struct rs_transfer transfer = begin();
    CUresult result;
    int fd = -1;

    assert_int_equal(rs_transfer_start(&header->pipe, make_piece), CUDA_SUCCESS);
    assert_int_equal(rs_transfer_start(&header->pipe, make_piece), CUDA_SUCCESS);
    for (uint32_t i = 0; i < PIECES; i++) {
        assert_int_equal(rs_transfer_next(&transfer, i, &fd), CUDA_SUCCESS);
        assert_int_equal(size_of(fd), i + 1);
    }
    assert_int_equal(rs_transfer_next(&transfer, PIECES, &fd), CUDA_ERROR_NOT_READY);
    assert_int_equal(fd, -1);
    handle.generation++;
    assert_int_equal(rs_transfer_next(&transfer, 0, &fd), CUDA_ERROR_NOT_READY);
    rs_transfer_end(&transfer);
    assert_int_equal(header->pipe.failures, 0);
    /* An exporter without descriptors says so, and nobody waits for long. */
    handle.generation--;
    failing_socket = sockets + 2; /* the next is the importer's own */
    assert_int_equal(rs_transfer_next(&transfer, 0, &fd), CUDA_ERROR_NOT_READY);
    assert_int_equal(header->pipe.failures, 1);
    assert_int_equal(rs_transfer_next(&transfer, 0, &fd), CUDA_SUCCESS);
    assert_int_equal(size_of(fd), 1);
    rs_transfer_end(&transfer);
    /* When the program has closed one end of the pipe, the thread ends after one more answer, or
     * before it if it looks only now.  (The race detector does not see this call, and so not that
     * the program closes what the thread reads.) */
    assert_int_equal(syscall(SYS_close, read_end()), 0);
    result = rs_transfer_next(&transfer, 0, &fd);
    if (result == CUDA_SUCCESS) {
        close(fd);
        rs_transfer_end(&transfer);
        result = rs_transfer_next(&transfer, 0, &fd);
    }
    assert_int_not_equal(result, CUDA_SUCCESS);
    assert_int_equal(header->pipe.fd, 0);
    assert_int_equal(rs_transfer_start(&header->pipe, make_piece), CUDA_ERROR_NOT_SUPPORTED);
}

static void send_to(const char *name, int size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct iovec part = {(void *)(uintptr_t) "", 1};
    union {
        struct cmsghdr first;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.first = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    int to = socket(AF_UNIX, SOCK_SEQPACKET, 0), fd = make_file(size);

    memcpy(address.sun_path + 1, name, strlen(name));
    memcpy(CMSG_DATA(&control.first), &fd, sizeof(fd));
    if (connect(to, (struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name))) != 0)
        _exit(9);
    (void)sendmsg(to, &message, MSG_NOSIGNAL); /* a stranger's fails when it was passed over */
    close(fd);
    close(to);
}

/* Another process of this user answers first. */
static void *answer_late(void *data)
{
    const int *read_end = data;
    char request[64];
    pid_t stranger;
    int status = -1;

    if (read(*read_end, request, sizeof(request)) != sizeof(request))
        _exit(9);
    stranger = fork();
    if (stranger == 0) {
        send_to(request, WRONG);
        _exit(0);
    }
    if (waitpid(stranger, &status, 0) != stranger || status)
        _exit(9);
    send_to(request, RIGHT);
    return NULL;
}

TEST(a_stranger_is_passed_over)
{
    struct rs_transfer transfer = begin();
    pthread_t thread;
    int ends[2], fd = -1;

    name_pipe(ends);
    assert_int_equal(pthread_create(&thread, NULL, answer_late, ends), 0);
    assert_int_equal(rs_transfer_next(&transfer, 0, &fd), CUDA_SUCCESS);
    assert_int_equal(size_of(fd), RIGHT);
    pthread_join(thread, NULL);
    rs_transfer_end(&transfer);
}

/* A number that stands for another file is not written to. */
TEST(only_the_exporters_pipe_is_written_to)
{
    struct rs_transfer transfer = begin();
    int ends[2], fd = -1, waiting = -1;

    name_pipe(ends);
    header->pipe.inode++;
    assert_int_equal(rs_transfer_next(&transfer, 0, &fd), CUDA_ERROR_MAP_FAILED);
    assert_int_equal(ioctl(ends[0], FIONREAD, &waiting), 0);
    assert_int_equal(waiting, 0);
}

/* An exporter that cannot have a socket says so in its table, and nobody waits for long. */
static void *answer_nothing(void *data)
{
    char request[64];

    if (read(*(const int *)data, request, sizeof(request)) != sizeof(request))
        _exit(9);
    atomic_fetch_add(&header->pipe.failures, 1);
    return NULL;
}

TEST(a_failure_is_told)
{
    struct rs_transfer transfer = begin();
    pthread_t thread;
    int ends[2], fd = -1;

    name_pipe(ends);
    assert_int_equal(pthread_create(&thread, NULL, answer_nothing, ends), 0);
    assert_int_equal(rs_transfer_next(&transfer, 0, &fd), CUDA_ERROR_NOT_READY);
    pthread_join(thread, NULL);
}

/* ---- importers that cannot ask, or get no answer ---- */

static void is_refused(CUresult expected)
{
    struct rs_transfer transfer = begin();
    unsigned before;
    int ends[2], fd = -1;

    name_pipe(ends);
    before = open_descriptors();
    assert_int_equal(rs_transfer_next(&transfer, 0, &fd), expected);
    assert_int_equal(fd, -1);
    assert_int_equal(open_descriptors(), before);
    rs_transfer_end(&transfer);
    close(ends[0]);
    close(ends[1]);
}

/* What the next socket fails with, the error that the program gets, and the reason that it reads.
 */
static void is_refused_for(int error, CUresult expected, const char *why)
{
    failing_socket = sockets + 1;
    socket_error = error;
    is_refused(expected);
    assert_non_null(strstr(reason, why));
}

TEST(an_importer_that_cannot_listen_says_why)
{
    is_refused_for(EMFILE, CUDA_ERROR_OUT_OF_MEMORY, "no file descriptor left");
    is_refused_for(ENFILE, CUDA_ERROR_OUT_OF_MEMORY, "no file descriptor left");
    is_refused_for(ENOMEM, CUDA_ERROR_OUT_OF_MEMORY, "too little host memory");
    is_refused_for(ENOBUFS, CUDA_ERROR_OUT_OF_MEMORY, "too little host memory");
    is_refused_for(EACCES, CUDA_ERROR_NOT_SUPPORTED, "not allowed to open a Unix socket");
    failing_socket = 0;
    refuses_numbers = true;
    is_refused(CUDA_ERROR_NOT_SUPPORTED);
}

TEST(an_exporter_that_does_not_answer_is_given_up)
{
    shows_nothing = true;
    ahead_s = 0;
    is_refused(CUDA_ERROR_MAP_FAILED);
    assert_in_range(ahead_s, 10, 12);
}

TEST(strangers_do_not_prolong_the_wait)
{
    shows_strangers = true;
    ahead_s = 0;
    is_refused(CUDA_ERROR_MAP_FAILED);
    assert_in_range(ahead_s, 10, 12);
}

/* The number is that of another process by now. */
TEST(an_exporter_that_has_ended_is_not_waited_for)
{
    struct rs_transfer transfer = begin();
    int ends[2], fd = -1;

    name_pipe(ends);
    handle.start_ticks--;
    shows_nothing = true;
    ahead_s = 0;
    assert_int_not_equal(rs_transfer_next(&transfer, 0, &fd), CUDA_SUCCESS);
    assert_int_equal(ahead_s, 1);
    assert_int_equal(fd, -1);
}

static void *answer_at_once(void *data)
{
    char request[64];

    if (read(*(const int *)data, request, sizeof(request)) != sizeof(request))
        _exit(9);
    send_to(request, RIGHT);
    return NULL;
}

static void cannot_accept(int error, const char *why)
{
    struct rs_transfer transfer = begin();
    pthread_t thread;
    int ends[2], fd = -1;

    name_pipe(ends);
    accept_error = error;
    assert_int_equal(pthread_create(&thread, NULL, answer_at_once, ends), 0);
    assert_int_equal(rs_transfer_next(&transfer, 0, &fd), CUDA_ERROR_OUT_OF_MEMORY);
    pthread_join(thread, NULL);
    assert_int_equal(fd, -1);
    assert_non_null(strstr(reason, why));
}

TEST(an_importer_without_room_for_the_connection_is_out_of_memory)
{
    cannot_accept(EMFILE, "no file descriptor left");
    cannot_accept(ENOMEM, "too little host memory");
}
