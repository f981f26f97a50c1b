/* SPDX-License-Identifier: Apache-2.0 */
/* The socket by which mapped memory goes to other processes: who sends is told, and descriptors
 * arrive. */
#include "unit.h"

#include "ipc/server.h"
#include "ipc/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAIT_MS = 60 * 1000 };

static const unsigned char nonce[RS_IPC_NONCE_BYTES] = {0xab, 1, 2, 0xff};

static struct rs_ipc_address address_of(int fd)
{
    struct rs_ipc_address address = {.length = sizeof(address.name)};

    assert_int_equal(getsockname(fd, (struct sockaddr *)&address.name, &address.length), 0);
    return address;
}

static ino_t inode_of(int fd)
{
    struct stat status;

    assert_int_equal(fstat(fd, &status), 0);
    return status.st_ino;
}

TEST(an_address_is_an_abstract_name_with_the_whole_nonce)
{
    static const char name[] = "rmmshim-ipc-ab0102ff000000000000000000000000";
    struct rs_ipc_address address;

    rs_ipc_address_of(nonce, &address);
    assert_int_equal(address.name.sun_path[0], 0);
    assert_int_equal(address.length, offsetof(struct sockaddr_un, sun_path) + sizeof(name));
    assert_memory_equal(address.name.sun_path + 1, name, sizeof(name) - 1);
}

TEST(a_datagram_tells_its_sender_and_brings_its_descriptors)
{
    int sender = rs_ipc_socket_open(NULL), receiver = rs_ipc_socket_open(NULL), ends[2];
    struct rs_ipc_address to = address_of(receiver), from = address_of(sender);
    struct rs_ipc_datagram datagram;
    char text[8] = "";

    assert_int_equal(pipe(ends), 0);
    assert_true(rs_ipc_socket_send(sender, &to, "abc", 3, ends, 2));
    rs_ipc_socket_wait(receiver, WAIT_MS);
    assert_true(rs_ipc_socket_receive(receiver, text, sizeof(text), &datagram));
    assert_int_equal(datagram.size_bytes, 3);
    assert_string_equal(text, "abc");
    assert_int_equal(datagram.process, getpid());
    assert_int_equal(datagram.user, getuid());
    assert_int_equal(datagram.sender.length, from.length);
    assert_memory_equal(&datagram.sender.name, &from.name, from.length);
    assert_int_equal(datagram.descriptor_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(datagram.descriptors[i], ends[i]);
        assert_int_equal(inode_of(datagram.descriptors[i]), inode_of(ends[i]));
        assert_int_equal(fcntl(datagram.descriptors[i], F_GETFD), FD_CLOEXEC);
    }
    rs_ipc_datagram_close(&datagram, 0);
    assert_int_equal(fcntl(datagram.descriptors[0], F_GETFD), -1);
    assert_false(rs_ipc_socket_receive(receiver, text, sizeof(text), &datagram));
    assert_int_equal(errno, EAGAIN);
    for (int i = 0; i < 2; i++)
        close(ends[i]);
    close(sender);
    close(receiver);
}

/* As many as there is room for; the others do not stay anywhere. */
TEST(descriptors_beyond_the_limit_are_dropped)
{
    int sender = rs_ipc_socket_open(NULL), receiver = rs_ipc_socket_open(NULL), ends[2];
    struct rs_ipc_address to = address_of(receiver);
    struct rs_ipc_datagram datagram;
    struct rlimit before, limit;
    char text[8];

    assert_int_equal(pipe(ends), 0);
    assert_true(rs_ipc_socket_send(sender, &to, "abc", 3, ends, 2));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)ends[1] + 2; /* room for one more */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_true(rs_ipc_socket_receive(receiver, text, sizeof(text), &datagram));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(datagram.descriptor_count, 1);
    assert_int_equal(inode_of(datagram.descriptors[0]), inode_of(ends[0]));
    rs_ipc_datagram_close(&datagram, 0);
    for (int i = 0; i < 2; i++)
        close(ends[i]);
    close(sender);
    close(receiver);
}

TEST(nobody_at_an_address_is_an_error_at_once)
{
    int sender = rs_ipc_socket_open(NULL);
    struct rs_ipc_address nobody;

    rs_ipc_address_of(nonce, &nobody);
    assert_false(rs_ipc_socket_send(sender, &nobody, "abc", 3, NULL, 0));
    assert_int_equal(errno, ECONNREFUSED);
    close(sender);
}

/* ---- the server, whose thread reads and counts in these ---- */

static _Atomic int sent = -1;
static _Atomic unsigned made; /* requests that reached this function */

static unsigned make_one(const struct rs_ipc_request *request, int *descriptors, CUresult *result)
{
    made++;
    if (request->first > 0) {
        *result = CUDA_ERROR_INVALID_VALUE;
        return 0;
    }
    descriptors[0] = dup(sent);
    return 1;
}

static struct rs_ipc_request request_of(uint32_t serial)
{
    struct rs_ipc_request request = {.slot = 3, .generation = 4, .serial = serial};

    memcpy(request.magic, rs_ipc_magic, sizeof(request.magic));
    memcpy(request.nonce, nonce, sizeof(request.nonce));
    return request;
}

static void ask(int fd, const struct rs_ipc_request *request)
{
    struct rs_ipc_address server;

    rs_ipc_address_of(nonce, &server);
    assert_true(rs_ipc_socket_send(fd, &server, request, sizeof(*request), NULL, 0));
}

static void hear(int fd, struct rs_ipc_answer *answer, struct rs_ipc_datagram *datagram)
{
    rs_ipc_socket_wait(fd, WAIT_MS);
    assert_true(rs_ipc_socket_receive(fd, answer, sizeof(*answer), datagram));
    assert_int_equal(datagram->size_bytes, sizeof(*answer));
}

/* What is no request of a process that has read the table gets no answer, and does no harm. */
TEST(the_server_answers_requests_alone)
{
    int fd = rs_ipc_socket_open(NULL);
    struct rs_ipc_request good = request_of(7), wrong = good, bad = request_of(8);
    struct rs_ipc_datagram datagram;
    struct rs_ipc_address server;
    struct rs_ipc_answer answer;

    sent = fd;
    assert_true(rs_server_start(nonce, make_one));
    assert_true(rs_server_start(nonce, make_one));
    rs_ipc_address_of(nonce, &server);
    wrong.nonce[5] ^= 1;
    ask(fd, &wrong);
    assert_true(rs_ipc_socket_send(fd, &server, NULL, 0, NULL, 0));
    assert_true(rs_ipc_socket_send(fd, &server, &good, sizeof(good) - 1, &fd, 1));
    ask(fd, &good);
    hear(fd, &answer, &datagram);
    assert_int_equal(made, 1);
    assert_int_equal(answer.serial, 7);
    assert_int_equal(answer.count, 1);
    assert_int_equal(answer.result, CUDA_SUCCESS);
    assert_int_equal(datagram.process, getpid());
    assert_int_equal(datagram.descriptor_count, 1);
    assert_int_equal(inode_of(datagram.descriptors[0]), inode_of(fd));
    rs_ipc_datagram_close(&datagram, 0);
    bad.first = 1;
    ask(fd, &bad);
    hear(fd, &answer, &datagram);
    assert_int_equal(answer.serial, 8);
    assert_int_equal(answer.count, 0);
    assert_int_equal(answer.result, CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(datagram.descriptor_count, 0);
    close(fd);
}

/* Another user's process knows the name, which /proc/net/unix shows, but may not open the table. */
TEST(the_server_answers_no_other_user)
{
    struct rs_ipc_request request = request_of(9);
    struct rs_ipc_datagram datagram;
    struct rs_ipc_answer answer;
    int fd = rs_ipc_socket_open(NULL), status;
    unsigned before = made;
    pid_t child;

    if (geteuid() != 0)
        skip();
    child = fork();
    if (child == 0) {
        int own = setuid(65534) == 0 ? rs_ipc_socket_open(NULL) : -1;
        struct rs_ipc_address server;
        rs_ipc_address_of(nonce, &server);
        _exit(own < 0 || !rs_ipc_socket_send(own, &server, &request, sizeof(request), NULL, 0));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    sent = fd;
    ask(fd, &request); /* comes after the other's */
    hear(fd, &answer, &datagram);
    assert_int_equal(made, before + 1);
    rs_ipc_datagram_close(&datagram, 0);
    close(fd);
}
