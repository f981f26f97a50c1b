/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/socket.h"

#include "base/check.h"
#include "base/file.h"
#include "base/undisturbed.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define NAME_START "rmmshim-ipc-"

void rs_ipc_address_of(const unsigned char nonce[RS_IPC_NONCE_BYTES],
                       struct rs_ipc_address *address)
{
    static const char digits[16] = "0123456789abcdef";
    size_t length = sizeof(NAME_START) - 1;
    char *name = address->name.sun_path + 1; /* a first byte of 0: the abstract namespace */

    *address = (struct rs_ipc_address){.name = {.sun_family = AF_UNIX}};
    memcpy(name, NAME_START, length);
    for (size_t i = 0; i < RS_IPC_NONCE_BYTES; i++) {
        name[length++] = digits[nonce[i] >> 4];
        name[length++] = digits[nonce[i] & 15];
    }
    address->length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length);
}

int rs_ipc_socket_open(const struct rs_ipc_address *address)
{
    /* The family alone has the kernel choose a name. */
    struct rs_ipc_address any = {.name = {.sun_family = AF_UNIX}, .length = sizeof(sa_family_t)};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1;

    if (fd < 0)
        return -1;
    if (!address)
        address = &any;
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
        bind(fd, (const struct sockaddr *)&address->name, address->length) == 0)
        return fd;
    rs_file_close(fd);
    return -1;
}

/* Room for what the kernel adds to a datagram. */
union control {
    struct cmsghdr alignment;
    char bytes[CMSG_SPACE(sizeof(int[RS_IPC_DESCRIPTORS_MAX])) + CMSG_SPACE(sizeof(struct ucred))];
};

bool rs_ipc_socket_send(int fd, const struct rs_ipc_address *to, const void *bytes,
                        size_t size_bytes, const int *descriptors, unsigned descriptor_count)
{
    struct rs_ipc_address address = *to;
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size_bytes};
    struct msghdr message = {.msg_name = &address.name,
                             .msg_namelen = address.length,
                             .msg_iov = &part,
                             .msg_iovlen = 1};
    struct rs_uncancelled uncancelled;
    union control control;
    ssize_t sent;

    RS_ASSERT(descriptor_count <= RS_IPC_DESCRIPTORS_MAX);
    memset(&control, 0, sizeof(control));
    if (descriptor_count > 0) {
        struct cmsghdr *header = &control.alignment;
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(descriptor_count * sizeof(int));
        memcpy(CMSG_DATA(header), descriptors, descriptor_count * sizeof(int));
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(descriptor_count * sizeof(int));
    }
    rs_uncancelled_begin(&uncancelled);
    sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    rs_uncancelled_end(&uncancelled);
    return sent == (ssize_t)size_bytes;
}

static void read_control(struct msghdr *message, struct rs_ipc_datagram *datagram)
{
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    struct ucred sender;

    for (; header; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET)
            continue;
        if (header->cmsg_type == SCM_CREDENTIALS && header->cmsg_len >= CMSG_LEN(sizeof(sender))) {
            memcpy(&sender, CMSG_DATA(header), sizeof(sender));
            datagram->process = sender.pid;
            datagram->user = sender.uid;
        } else if (header->cmsg_type == SCM_RIGHTS) {
            datagram->descriptor_count = (unsigned)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            RS_ASSERT(datagram->descriptor_count <= RS_IPC_DESCRIPTORS_MAX); /* room for no more */
            memcpy(datagram->descriptors, CMSG_DATA(header),
                   datagram->descriptor_count * sizeof(int));
        }
    }
}

void rs_ipc_socket_wait(int fd, int milliseconds)
{
    struct pollfd wanted = {.fd = fd, .events = POLLIN};
    struct rs_uncancelled uncancelled;

    rs_uncancelled_begin(&uncancelled);
    (void)poll(&wanted, 1, milliseconds);
    rs_uncancelled_end(&uncancelled);
}

bool rs_ipc_socket_receive(int fd, void *bytes, size_t size_bytes, struct rs_ipc_datagram *datagram)
{
    struct iovec part = {.iov_base = bytes, .iov_len = size_bytes};
    union control control;
    struct msghdr message = {.msg_name = &datagram->sender.name,
                             .msg_namelen = sizeof(datagram->sender.name),
                             .msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct rs_uncancelled uncancelled;
    ssize_t received;

    *datagram = (struct rs_ipc_datagram){.process = 0};
    rs_uncancelled_begin(&uncancelled);
    received = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    rs_uncancelled_end(&uncancelled);
    if (received < 0)
        return false;
    datagram->size_bytes = (size_t)received;
    datagram->sender.length = message.msg_namelen;
    read_control(&message, datagram);
    return true;
}

void rs_ipc_datagram_close(struct rs_ipc_datagram *datagram, unsigned from)
{
    for (; from < datagram->descriptor_count; from++)
        rs_file_close(datagram->descriptors[from]);
    datagram->descriptor_count = 0;
}
