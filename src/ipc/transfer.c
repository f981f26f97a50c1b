/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/transfer.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/thread.h"
#include "shared/job.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    NAME_BYTES = 48,
    BATCH = 8, /* descriptors for one request: few enough for any queue and RLIMIT_NOFILE */
    LOOK_MS = 100,
};

/* An importer waits so long. An exporter that is not stopped answers within a millisecond. */
static const uint64_t answer_wait_ns = 10ull * 1000 * 1000 * 1000;

struct request {
    char name[NAME_BYTES]; /* of the importer's socket */
    uint32_t slot, generation, piece, unused;
};

_Static_assert(sizeof(struct request) <= 512, "a write of POSIX's PIPE_BUF bytes is never divided");

static socklen_t address_of(const char name[NAME_BYTES], struct sockaddr_un *address)
{
    size_t length = strnlen(name, NAME_BYTES);

    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, length); /* an abstract name begins with a zero */
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

static int open_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* True when the other side is a process of this user and, unless `process` is 0, that process. */
static bool is_of(int connection, pid_t process)
{
    struct ucred other;
    socklen_t bytes = sizeof(other);

    return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 &&
           other.uid == geteuid() && (!process || other.pid == process);
}

/* ---- the exporter ---- */

static struct rs_kept_descriptor read_end, write_end;
static struct rs_ipc_pipe *shared_pipe; /* NULL: the thread has not been started */
static rs_transfer_make *make_descriptor;

static void send_pieces(int to, const struct request *request)
{
    static const char message[1];
    int failed = 0;

    for (uint32_t i = 0; i < BATCH && !failed; i++) {
        int fd = make_descriptor(request->slot, request->generation, request->piece + i);
        if (fd < 0)
            return;
        failed = rs_job_send(to, message, sizeof(message), fd);
        rs_file_close(fd);
    }
}

static void answer(const struct request *request)
{
    struct sockaddr_un address;
    socklen_t length = address_of(request->name, &address);
    int to = open_socket();

    if (to < 0) {
        atomic_fetch_add(&shared_pipe->failures, 1);
        return;
    }
    if (connect(to, (struct sockaddr *)&address, length) == 0 && is_of(to, 0))
        send_pieces(to, request);
    rs_file_close(to);
}

/* The thread. Ends when the program has closed the pipe, since the number may then stand for a file
 * of the program's. At the end it clears `fd`, so that no importer asks any more, and increases
 * `failures`, so that an importer that has asked does not wait. */
static void *answer_requests(void *data)
{
    struct request request;
    ssize_t bytes = 1;

    (void)data;
    while (rs_descriptor_is_kept(&read_end) && bytes > 0) {
        bytes = read(read_end.fd, &request, sizeof(request));
        if (bytes == (ssize_t)sizeof(request))
            answer(&request);
    }
    RS_ASSERT(shared_pipe); /* set before the thread starts */
    atomic_store(&shared_pipe->fd, 0);
    atomic_fetch_add(&shared_pipe->failures, 1);
    return NULL;
}

/* Tries to make a socket: where a sandbox forbids that, no process could open a handle. */
static CUresult try_socket(void)
{
    int fd = open_socket();

    if (fd < 0)
        return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM
                   ? CUDA_ERROR_OUT_OF_MEMORY
                   : CUDA_ERROR_NOT_SUPPORTED;
    rs_file_close(fd);
    return CUDA_SUCCESS;
}

static bool open_pipe(void)
{
    int ends[2];
    bool is_kept;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    is_kept = rs_descriptor_keep(&read_end, ends[0]);
    if (is_kept && rs_descriptor_keep(&write_end, ends[1]))
        return true;
    if (is_kept)
        rs_descriptor_close(&read_end);
    else
        rs_file_close(ends[1]);
    return false;
}

CUresult rs_transfer_start(struct rs_ipc_pipe *shared, rs_transfer_make *make)
{
    CUresult result;

    RS_ASSERT(!shared_pipe || (shared_pipe == shared && make_descriptor == make));
    if (shared_pipe)
        return atomic_load(&shared->fd) && rs_descriptor_is_kept(&read_end) &&
                       rs_descriptor_is_kept(&write_end)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_NOT_SUPPORTED;
    result = try_socket();
    if (result != CUDA_SUCCESS)
        return result;
    if (!open_pipe())
        return CUDA_ERROR_OUT_OF_MEMORY;
    shared_pipe = shared;
    make_descriptor = make;
    shared->fd = write_end.fd;
    shared->device = write_end.device;
    shared->inode = write_end.inode;
    if (rs_thread_start(answer_requests))
        return CUDA_SUCCESS;
    shared_pipe = NULL;
    shared->fd = 0;
    rs_descriptor_close(&read_end);
    rs_descriptor_close(&write_end);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* ---- the importer ---- */

#define NO_ANSWER "the process that shared the memory does not answer: perhaps it is stopped"

/* Waits until the socket has something to receive. Returns false with the CUDA error in *result
 * when the exporter has ended or cannot answer, when until_ns is over, or when poll fails for lack
 * of memory. */
static bool comes_by(const struct rs_transfer *transfer, int socket, uint64_t until_ns,
                     CUresult *result)
{
    struct pollfd one = {socket, POLLIN, 0};
    struct rs_ipc_header now;
    int ready;

    while ((ready = poll(&one, 1, LOOK_MS)) <= 0) {
        if (ready < 0 && rs_ipc_is_lack(errno, result))
            return false;
        if (!rs_exporter_is_running(transfer->handle, result))
            return false;
        if (!rs_exporter_read(transfer->exporter, &now) ||
            now.pipe.failures != transfer->failures) {
            *result = CUDA_ERROR_NOT_READY;
            return false;
        }
        if (rs_clock_ns() > until_ns) {
            *result = RS_IPC_REFUSE(CUDA_ERROR_MAP_FAILED, NO_ANSWER);
            return false;
        }
    }
    return true;
}

/* Writes the request into the exporter's pipe, whose number may stand for another file by now. So
 * the file is held without being opened (O_PATH), checked, and then that very file is opened. */
static bool write_request(const struct rs_ipc_handle *handle, const struct rs_ipc_pipe *pipe,
                          const struct request *request)
{
    char path[64];
    struct stat status;
    bool is_written = false;
    int fd = -1, held;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)handle->process, (int)pipe->fd);
    held = pipe->fd > 0 ? rs_file_hold(path) : -1;
    if (held < 0)
        return false;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", held);
    if (fstat(held, &status) == 0 && S_ISFIFO(status.st_mode) && status.st_dev == pipe->device &&
        status.st_ino == pipe->inode)
        fd = rs_file_open_to_change(path); /* also for reading, so that no write raises SIGPIPE */
    rs_file_close(held);
    if (fd >= 0) {
        is_written = write(fd, request, sizeof(*request)) == (ssize_t)sizeof(*request);
        rs_file_close(fd);
    }
    return is_written;
}

/* Listens at a new random name, and writes the name into the request. */
static int listen_at_new_name(struct request *request)
{
    unsigned long long random[2] = {0};
    struct sockaddr_un address;
    bool is_random;
    int fd = open_socket();

    if (fd < 0)
        return -1;
    is_random = getrandom(random, sizeof(random), 0) == sizeof(random);
    snprintf(request->name, sizeof(request->name), "rmmshim-%016llx%016llx", random[0], random[1]);
    if (is_random &&
        bind(fd, (struct sockaddr *)&address, address_of(request->name, &address)) == 0 &&
        listen(fd, 4) == 0)
        return fd;
    rs_file_close(fd);
    return -1;
}

/* Accepts the exporter's connection, and closes others: anybody may connect who reads the name in
 * /proc/net/unix. */
static CUresult accept_exporter(struct rs_transfer *transfer, int listener)
{
    uint64_t until_ns = rs_clock_ns() + answer_wait_ns;
    CUresult result = CUDA_SUCCESS;

    while (comes_by(transfer, listener, until_ns, &result)) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (connection >= 0 && is_of(connection, transfer->handle->process)) {
            transfer->connection = connection;
            return CUDA_SUCCESS;
        }
        if (connection >= 0)
            rs_file_close(connection);
        else if (rs_ipc_is_lack(errno, &result))
            return result;
        if (rs_clock_ns() > until_ns) /* others have connected all the time */
            return RS_IPC_REFUSE(CUDA_ERROR_MAP_FAILED, NO_ANSWER);
    }
    return result;
}

static CUresult ask(struct rs_transfer *transfer, uint32_t piece)
{
    struct request request = {
        .slot = transfer->handle->slot, .generation = transfer->handle->generation, .piece = piece};
    struct rs_ipc_header header = {.pipe = {.fd = 0}};
    int listener = listen_at_new_name(&request);
    CUresult result = CUDA_SUCCESS;
    bool is_asked;

    RS_ASSERT(transfer->connection < 0);
    if (listener < 0)
        return rs_ipc_is_lack(errno, &result)
                   ? result
                   : RS_IPC_REFUSE(CUDA_ERROR_NOT_SUPPORTED,
                                   "this process is not allowed to open a Unix socket, which it "
                                   "needs to receive the memory: allow it where the process is "
                                   "confined, as in a sandbox or container");
    errno = 0;
    is_asked = rs_exporter_read(transfer->exporter, &header) &&
               write_request(transfer->handle, &header.pipe, &request);
    transfer->failures = header.pipe.failures;
    if (is_asked)
        result = accept_exporter(transfer, listener);
    else if (!rs_ipc_is_lack(errno, &result) && rs_exporter_is_running(transfer->handle, &result))
        result = RS_IPC_REFUSE(CUDA_ERROR_MAP_FAILED,
                               "the process that shared the memory has closed a file descriptor "
                               "that rmmshim needs for sharing (perhaps in a loop over all "
                               "descriptors): let it close only those that it has opened");
    rs_file_close(listener);
    return result;
}

/* Receives a descriptor from the connection. Returns CUDA_SUCCESS with *fd < 0 when the exporter
 * has closed the connection. */
static CUresult receive(const struct rs_transfer *transfer, int *fd)
{
    CUresult result = CUDA_SUCCESS;
    char message;

    *fd = -1;
    if (!comes_by(transfer, transfer->connection, rs_clock_ns() + answer_wait_ns, &result))
        return result;
    /* The kernel leaves out a descriptor for which this process has no room. */
    (void)rs_ipc_is_lack(-rs_job_receive(transfer->connection, &message, sizeof(message), fd),
                         &result);
    return result;
}

CUresult rs_transfer_next(struct rs_transfer *transfer, uint32_t piece, int *fd)
{
    CUresult result = CUDA_SUCCESS;

    RS_UNCANCELLED_GUARD();
    *fd = -1;
    if (transfer->connection >= 0)
        result = receive(transfer, fd);
    if (result != CUDA_SUCCESS || *fd >= 0)
        return result;
    rs_transfer_end(transfer);
    result = ask(transfer, piece);
    if (result == CUDA_SUCCESS)
        result = receive(transfer, fd);
    return result == CUDA_SUCCESS && *fd < 0 ? CUDA_ERROR_NOT_READY : result;
}

void rs_transfer_end(struct rs_transfer *transfer)
{
    if (transfer->connection >= 0)
        rs_file_close(transfer->connection);
    transfer->connection = -1;
}
