/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/server.h"

#include "base/check.h"
#include "base/descriptor.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static struct rs_kept_descriptor server = {.fd = -1};
static unsigned char server_nonce[RS_IPC_NONCE_BYTES];
static rs_server_make *make_descriptors;

/* Only processes of the exporter's user are answered, as only these may open its table. */
static bool is_asked(const struct rs_ipc_request *request, const struct rs_ipc_datagram *datagram)
{
    return datagram->size_bytes == sizeof(*request) && datagram->user == geteuid() &&
           memcmp(request->magic, rs_ipc_magic, sizeof(request->magic)) == 0 &&
           memcmp(request->nonce, server_nonce, sizeof(request->nonce)) == 0;
}

static void answer(const struct rs_ipc_request *request, const struct rs_ipc_address *to)
{
    struct rs_ipc_answer text = {.serial = request->serial};
    struct rs_ipc_datagram made = {.process = 0};
    CUresult result = CUDA_SUCCESS;

    made.descriptor_count = make_descriptors(request, made.descriptors, &result);
    RS_ASSERT(made.descriptor_count > 0 || result != CUDA_SUCCESS);
    text.result = (int32_t)result;
    text.count = made.descriptor_count;
    /* An importer that has gone gets nothing, and one with a full queue asked more than once. */
    if (rs_descriptor_is_kept(&server))
        (void)rs_ipc_socket_send(server.fd, to, &text, sizeof(text), made.descriptors,
                                 made.descriptor_count);
    rs_ipc_datagram_close(&made, 0);
}

/* Ends when the program has closed the socket: its number may be a file of the program's by then.
 */
static void *serve(void *data)
{
    struct rs_ipc_datagram datagram;
    struct rs_ipc_request request;

    (void)data;
    for (;;) {
        rs_ipc_socket_wait(server.fd, -1);
        if (!rs_descriptor_is_kept(&server))
            break;
        if (!rs_ipc_socket_receive(server.fd, &request, sizeof(request), &datagram)) {
            if (errno != EAGAIN && errno != EINTR)
                break;
            continue;
        }
        rs_ipc_datagram_close(&datagram, 0); /* no request has any */
        if (is_asked(&request, &datagram))
            answer(&request, &datagram.sender);
    }
    return NULL;
}

static bool start_thread(void)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    int failed;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    failed = pthread_create(&thread, &attributes, serve, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed;
}

bool rs_server_start(const unsigned char nonce[RS_IPC_NONCE_BYTES], rs_server_make *make)
{
    struct rs_ipc_address address;
    int fd;

    if (make_descriptors)
        return rs_descriptor_is_kept(&server);
    rs_ipc_address_of(nonce, &address);
    fd = rs_ipc_socket_open(&address);
    if (fd < 0 || !rs_descriptor_keep(&server, fd))
        return false;
    memcpy(server_nonce, nonce, sizeof(server_nonce));
    make_descriptors = make;
    if (start_thread())
        return true;
    make_descriptors = NULL;
    rs_descriptor_close(&server);
    return false;
}
