/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/job.h"

#include "base/file.h"
#include "base/lock.h"
#include "base/process.h"
#include "shared/memory_file.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- messages ---- */

/* A control message with room for one descriptor. */
union control {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
};

int rs_job_send(int socket, const void *message, size_t bytes, int fd)
{
    struct iovec part = {(void *)(uintptr_t)message, bytes};
    union control control = {.header = {.cmsg_len = CMSG_LEN(sizeof(fd)),
                                        .cmsg_level = SOL_SOCKET,
                                        .cmsg_type = SCM_RIGHTS}};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;

    if (fd >= 0) {
        header.msg_control = &control;
        header.msg_controllen = sizeof(control.bytes);
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    }
    while ((sent = sendmsg(socket, &header, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        continue;
    return sent == (ssize_t)bytes ? 0 : sent < 0 ? -errno : -EPROTO;
}

int rs_job_receive(int socket, void *message, size_t bytes, int *fd)
{
    struct iovec part = {message, bytes};
    union control control = {.header = {.cmsg_len = 0}};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            /* Not CMSG_SPACE, whose padding has room for a second descriptor. */
                            .msg_controllen = CMSG_LEN(sizeof(*fd))};
    const struct cmsghdr *with;
    ssize_t received;
    bool is_whole;

    *fd = -1;
    while ((received = recvmsg(socket, &header, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        continue;
    if (received < 0)
        return -errno;
    with = CMSG_FIRSTHDR(&header);
    if (with && with->cmsg_level == SOL_SOCKET && with->cmsg_type == SCM_RIGHTS &&
        with->cmsg_len == CMSG_LEN(sizeof(*fd)))
        memcpy(fd, CMSG_DATA(with), sizeof(*fd));
    is_whole = received == (ssize_t)bytes && !(header.msg_flags & MSG_TRUNC);
    if (is_whole && !(header.msg_flags & MSG_CTRUNC))
        return 0;
    if (*fd >= 0)
        rs_file_close(*fd);
    *fd = -1;
    return is_whole ? -EMFILE : received == 0 ? -ECONNRESET : -EPROTO;
}

/* ---- a process ---- */

/* The parsed RMMSHIM_JOB. */
struct job {
    char name[RS_JOB_WORD_BYTES], token[RS_JOB_WORD_BYTES];
    int process, file;        /* the `run`, and its descriptor of the memory file */
    unsigned long long inode; /* the inode of that file */
    long long start;          /* rs_process_start_ticks of the `run` */
};

static bool read_variable(const char *text, struct job *job)
{
    return text &&
           sscanf(text, "%32[0-9a-f]:%32[0-9a-f]:%d:%d:%llu:%lld", job->name, job->token,
                  &job->process, &job->file, &job->inode, &job->start) == 6 &&
           strlen(job->name) + strlen(job->token) == 2ul * (RS_JOB_WORD_BYTES - 1);
}

/* Opens a socket under a high number, so that it is never one of the numbers of stdin, stdout and
 * stderr, which the program may have closed. */
static int open_socket(void)
{
    static const struct timeval longest = {RS_JOB_ANSWER_MS / 1000,
                                           RS_JOB_ANSWER_MS % 1000 * 1000l};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    int moved = fd < 0 ? -1 : rs_descriptor_duplicate(fd);

    if (fd >= 0)
        rs_file_close(fd);
    if (moved >= 0)
        (void)setsockopt(moved, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof(longest));
    return moved;
}

/* Connects to the `run`. connect() waits while the queue of connections is full, as it is when many
 * processes begin at the same time. */
static int connect_to(int socket, const char *name, uint64_t until_ns)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(name);
    int failed;

    memcpy(address.sun_path + 1, name, length); /* an abstract name begins with a zero */
    while ((failed = connect(socket, (const struct sockaddr *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length))) !=
               0 &&
           errno == EINTR && rs_clock_ns() < until_ns)
        continue;
    return failed ? -errno : 0;
}

/* True when the other side of the socket is the `run`. After the `run` has ended, any process may
 * take the name. Only the user is checked when the start time of the server is not known: /proc
 * does not tell it, or the kernel reports process 0 for a process of another PID namespace. */
static bool is_of_run(int socket, const struct job *job)
{
    struct ucred server;
    socklen_t bytes = sizeof(server);
    long long start;

    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &server, &bytes) != 0 ||
        (server.uid != geteuid() && server.uid != 0))
        return false;
    start = server.pid > 0 ? rs_process_start_ticks(server.pid) : -1;
    return start < 0 || start == job->start;
}

/* Waits for a message and returns whether one has come by until_ns. It repeats interrupted calls,
 * since the program may have a timer whose signals interrupt each call. */
static bool comes_by(int socket, uint64_t until_ns)
{
    struct pollfd one = {socket, POLLIN, 0};
    uint64_t now_ns = rs_clock_ns();

    while (now_ns < until_ns && poll(&one, 1, (int)((until_ns - now_ns) / 1000000) + 1) < 0 &&
           errno == EINTR)
        now_ns = rs_clock_ns();
    return one.revents != 0;
}

/* Connects to the `run` and sends the request. */
static int send_request(int socket, const struct job *job, struct rs_job_request request, int fd,
                        uint64_t until_ns)
{
    if (connect_to(socket, job->name, until_ns) != 0 || !is_of_run(socket, job))
        return -ESTALE;
    memcpy(request.token, job->token, sizeof(request.token));
    return rs_job_send(socket, &request, sizeof(request), fd);
}

static int take_answer(int socket, int *received, uint64_t until_ns)
{
    uint32_t granted = 0;
    int other = -1;
    int result = comes_by(socket, until_ns)
                     ? rs_job_receive(socket, &granted, sizeof(granted), &other)
                     : -ETIMEDOUT;

    if (result == 0 && !granted)
        result = -EACCES;
    if (result == 0 && received)
        *received = other;
    else if (other >= 0)
        rs_file_close(other);
    return result == 0 ? (int)granted - 1 : result;
}

static void say_unheld(const struct job *job)
{
    _Atomic uint32_t *unheld =
        rs_memory_file_map(job->process, job->file, job->inode, sizeof(*unheld));

    if (!unheld)
        return;
    atomic_fetch_add(unheld, 1);
    munmap(unheld, sizeof(*unheld));
}

int rs_run_ask_at(const char *run, enum rs_job_wish wish, uint32_t number, int fd, int *received)
{
    struct rs_job_request request = {.layout = RS_JOB_LAYOUT, .wish = wish, .number = number};
    uint64_t until_ns = rs_clock_ns() + RS_JOB_ANSWER_MS * 1000000ull;
    RS_UNCANCELLED_GUARD();
    struct job job;
    int socket, result;
    bool is_sent;

    if (!run || !read_variable(run, &job))
        return -ENOENT;
    socket = open_socket();
    result = socket < 0 ? -ESTALE : send_request(socket, &job, request, fd, until_ns);
    is_sent = result == 0;
    if (is_sent)
        result = take_answer(socket, received, until_ns);
    if (socket >= 0)
        rs_file_close(socket);
    /* Counts a page that `run` has certainly not got.  It may have got one that was sent, even if
     * it did not answer. */
    if (!is_sent && wish != RS_JOB_GIVE_LIMIT)
        say_unheld(&job);
    return result;
}

int rs_run_ask(enum rs_job_wish wish, uint32_t number, int fd, int *received)
{
    return rs_run_ask_at(rs_environment_get(RS_JOB_VARIABLE), wish, number, fd, received);
}
