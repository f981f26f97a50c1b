/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams between an importer and an exporter, with file descriptors in them.
 *
 * Mapped memory (`virtual`) has no 64 bytes that open it: another process gets it by a file
 * descriptor.  Opening /proc/PID/fd, as for the table, opens a device file anew, without what the
 * driver has put behind it, and pidfd_getfd needs the right to attach to the process.  So the
 * exporter sends the descriptors (SCM_RIGHTS).  The socket's name is in the abstract namespace: no
 * file is left behind, and the kernel tells the process and the user of each sender.  Datagrams
 * have no connections, so that an importer that stops half-way costs the exporter nothing. */
#pragma once

#include "driver/cuda.h"
#include "ipc/table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

enum { RS_IPC_DESCRIPTORS_MAX = 8 }; /* in one answer */

/* Asks for descriptors of an exported block, which the asking process has locked. */
struct rs_ipc_request {
    char magic[8]; /* rs_ipc_magic */
    unsigned char nonce[RS_IPC_NONCE_BYTES];
    uint32_t slot, generation;
    uint32_t first;  /* number of the first piece that is wanted */
    uint32_t serial; /* of this request, for its answer */
};

struct rs_ipc_answer {
    uint32_t serial;
    int32_t result; /* a CUresult */
    uint32_t count; /* number of descriptors that come with it */
};

struct rs_ipc_address {
    struct sockaddr_un name;
    socklen_t length;
};

/* A datagram that has arrived.  Its descriptors belong to the receiver. */
struct rs_ipc_datagram {
    struct rs_ipc_address sender;
    pid_t process; /* of the sender, as this process's namespace counts; 0: not told */
    uid_t user;    /* real user of the sender */
    size_t size_bytes;
    unsigned descriptor_count;
    int descriptors[RS_IPC_DESCRIPTORS_MAX];
};

/* Fills in the address of the exporter whose table has that nonce. */
void rs_ipc_address_of(const unsigned char nonce[RS_IPC_NONCE_BYTES],
                       struct rs_ipc_address *address);

/* Returns a new socket, close-on-exec, whose receiver is told who sends; -1 with errno.  A NULL
 * address: the kernel chooses a name. */
int rs_ipc_socket_open(const struct rs_ipc_address *address);

/* Sends without waiting for room.  False with errno. */
bool rs_ipc_socket_send(int fd, const struct rs_ipc_address *to, const void *bytes,
                        size_t size_bytes, const int *descriptors, unsigned descriptor_count);

/* Waits until a datagram is there, at most milliseconds (-1: without bound).  May return early. */
void rs_ipc_socket_wait(int fd, int milliseconds);

/* Takes a datagram without waiting; one that is larger than size_bytes is cut off.  False with
 * errno, which is EAGAIN where none is there. */
bool rs_ipc_socket_receive(int fd, void *bytes, size_t size_bytes,
                           struct rs_ipc_datagram *datagram);

/* Closes the descriptors that came with a datagram, from the first that is not used yet. */
void rs_ipc_datagram_close(struct rs_ipc_datagram *datagram, unsigned from);
