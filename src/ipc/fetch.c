/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/fetch.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/lock.h"
#include "driver/driver.h"
#include "ipc/exporter.h"
#include "ipc/socket.h"

#include <errno.h>
#include <string.h>

/* The exporter's thread answers in well under a millisecond.  It does not while the process is
 * stopped, or while a context's end is under way there. */
static const uint64_t answer_wait_ns = 10ull * 1000 * 1000 * 1000;

enum { LOOK_MS = 100, NAP_NS = 1000 * 1000 };

/* One exchange with an exporter. */
struct asking {
    const struct rs_ipc_handle *handle;
    struct rs_ipc_address exporter;
    int socket;
    struct rs_ipc_request request;
    uint64_t until_ns;
};

/* False when the exporter's socket is gone: /proc shows a process also after its end, until its
 * parent has asked for it.  The exporter passes over an empty datagram. */
static bool is_there(const struct asking *asking)
{
    return rs_ipc_socket_send(asking->socket, &asking->exporter, NULL, 0, NULL, 0) ||
           errno != ECONNREFUSED;
}

/* True while it makes sense to wait on; else false with the CUDA error in *result. */
static bool may_wait(const struct asking *asking, CUresult *result)
{
    if (!rs_exporter_is_running(asking->handle, result))
        return false;
    if (!is_there(asking)) {
        *result = rs_ipc_refuse(RS_IPC_REFUSED_SOCKET);
        return false;
    }
    if (rs_clock_ns() < asking->until_ns)
        return true;
    *result = rs_ipc_refuse(RS_IPC_REFUSED_SILENT);
    return false;
}

static bool send_request(struct asking *asking, CUresult *result)
{
    while (!rs_ipc_socket_send(asking->socket, &asking->exporter, &asking->request,
                               sizeof(asking->request), NULL, 0)) {
        /* EAGAIN: more datagrams wait there than its queue holds. */
        if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS) {
            if (rs_exporter_is_running(asking->handle, result))
                *result = rs_ipc_refuse(RS_IPC_REFUSED_SOCKET);
            return false;
        }
        if (!may_wait(asking, result))
            return false;
        rs_nap(NAP_NS);
    }
    return true;
}

/* Waits for the answer to the last request; answers to earlier ones, and what others send, are
 * passed over. */
static bool await(struct asking *asking, struct rs_ipc_answer *answer,
                  struct rs_ipc_datagram *datagram, CUresult *result)
{
    for (;;) {
        rs_ipc_socket_wait(asking->socket, LOOK_MS);
        if (!rs_ipc_socket_receive(asking->socket, answer, sizeof(*answer), datagram)) {
            if (!may_wait(asking, result))
                return false;
            continue;
        }
        if (datagram->process == asking->handle->process &&
            datagram->size_bytes == sizeof(*answer) && answer->serial == asking->request.serial)
            return true;
        rs_ipc_datagram_close(datagram, 0);
    }
}

/* Asks for the pieces from number `first` on.  At least one has come with the datagram on
 * CUDA_SUCCESS. */
static CUresult ask(struct asking *asking, uint32_t first, struct rs_ipc_datagram *datagram)
{
    struct rs_ipc_answer answer;
    CUresult result = CUDA_SUCCESS;

    asking->until_ns = rs_clock_ns() + answer_wait_ns;
    for (;;) {
        asking->request.first = first;
        asking->request.serial++;
        if (!send_request(asking, &result) || !await(asking, &answer, datagram, &result))
            return result;
        if (datagram->descriptor_count > 0)
            return CUDA_SUCCESS;
        /* The kernel drops what does not fit into this process's table of descriptors. */
        if (answer.count > 0)
            return rs_ipc_refuse(RS_IPC_REFUSED_DESCRIPTORS);
        if (answer.result != CUDA_ERROR_NOT_READY)
            return rs_ipc_refuse(RS_IPC_REFUSED_UNSENT);
        if (!may_wait(asking, &result))
            return result;
        rs_nap(NAP_NS);
    }
}

static CUresult map_all(struct asking *asking, struct rs_mapped_pieces *mapping)
{
    CUresult result = CUDA_SUCCESS;

    while (mapping->mapped < mapping->pieces.count && result == CUDA_SUCCESS) {
        struct rs_ipc_datagram datagram;
        uint32_t lacking = mapping->pieces.count - mapping->mapped;
        result = ask(asking, mapping->mapped, &datagram);
        if (result != CUDA_SUCCESS)
            return result;
        RS_ASSERT(datagram.descriptor_count > 0);
        for (unsigned i = 0; i < datagram.descriptor_count && i < lacking; i++) {
            if (result == CUDA_SUCCESS)
                result = rs_pieces_map_next(mapping, datagram.descriptors[i]);
        }
        rs_ipc_datagram_close(&datagram, 0);
    }
    return result;
}

static CUresult fetch_pieces(struct asking *asking, CUdevice device, struct rs_fetched *fetched)
{
    CUresult result = map_all(asking, &fetched->pieces);

    return result == CUDA_SUCCESS ? rs_pieces_allow(&fetched->pieces, device) : result;
}

/* The pool is sent for the first of its blocks that is open here. */
static CUresult fetch_pool(struct asking *asking, const struct rs_ipc_slot *slot, CUdevice device,
                           struct rs_fetched *fetched)
{
    struct rs_ipc_datagram datagram;
    CUresult result = ask(asking, 0, &datagram);

    if (result != CUDA_SUCCESS)
        return result;
    result = rs_pooled_use(asking->handle, slot, device, datagram.descriptors[0], &fetched->pooled);
    rs_ipc_datagram_close(&datagram, 0);
    return result;
}

static CUresult fetch(const struct rs_ipc_handle *handle, const struct rs_ipc_slot *slot,
                      CUdevice device, struct rs_fetched *fetched)
{
    struct asking asking = {.handle = handle,
                            .request = {.slot = handle->slot, .generation = handle->generation}};
    CUresult result;

    memcpy(asking.request.magic, rs_ipc_magic, sizeof(asking.request.magic));
    memcpy(asking.request.nonce, handle->nonce, sizeof(asking.request.nonce));
    rs_ipc_address_of(handle->nonce, &asking.exporter);
    asking.socket = rs_ipc_socket_open(NULL);
    if (asking.socket < 0)
        return rs_ipc_refuse(RS_IPC_REFUSED_DESCRIPTORS);
    result = slot->pool ? fetch_pool(&asking, slot, device, fetched)
                        : fetch_pieces(&asking, device, fetched);
    rs_file_close(asking.socket);
    return result;
}

static CUresult have_pieces(const struct rs_ipc_handle *handle, const struct rs_ipc_slot *slot,
                            CUdevice device, struct rs_fetched *fetched)
{
    uint32_t count = slot->descriptor_count;
    CUresult result = rs_pieces_reserve(&fetched->pieces, slot->allocation_bytes / count, count);

    if (result != CUDA_SUCCESS)
        return result;
    fetched->base = fetched->pieces.pieces.base;
    result = fetch(handle, slot, device, fetched);
    if (result != CUDA_SUCCESS)
        (void)rs_pieces_drop(&fetched->pieces);
    return result;
}

static CUresult have_pooled(const struct rs_ipc_handle *handle, const struct rs_ipc_slot *slot,
                            CUdevice device, struct rs_fetched *fetched)
{
    CUresult result = rs_pooled_use(handle, slot, device, -1, &fetched->pooled);

    if (result == CUDA_ERROR_NOT_READY)
        result = fetch(handle, slot, device, fetched);
    if (result == CUDA_SUCCESS)
        fetched->base = rs_pooled_address(fetched->pooled);
    return result;
}

CUresult rs_fetch(const struct rs_ipc_handle *handle, const struct rs_ipc_slot *slot,
                  struct rs_fetched *fetched)
{
    CUdevice device;
    CUresult result = rs_driver.cuCtxGetDevice(&device);

    *fetched = (struct rs_fetched){.size_bytes = slot->allocation_bytes};
    if (result != CUDA_SUCCESS)
        return result;
    return slot->pool ? have_pooled(handle, slot, device, fetched)
                      : have_pieces(handle, slot, device, fetched);
}

CUresult rs_fetched_drop(struct rs_fetched *fetched)
{
    return fetched->pooled ? rs_pooled_leave(fetched->pooled) : rs_pieces_drop(&fetched->pieces);
}
