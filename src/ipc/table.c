/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/table.h"

#include "base/check.h"

#include <string.h>

/* The last byte is the version of the format. */
const char rs_ipc_magic[8] = {'r', 'm', 'm', 's', 'h', 'i', 'm', '2'};

bool rs_ipc_is_ours(const CUipcMemHandle *handle)
{
    return memcmp(handle, rs_ipc_magic, sizeof(rs_ipc_magic) - 1) == 0;
}

static uint64_t sum_of(const struct rs_ipc_handle *handle)
{
    const unsigned char *bytes = (const unsigned char *)handle;
    uint64_t sum = 0xcbf29ce484222325u;

    for (size_t i = 0; i < offsetof(struct rs_ipc_handle, sum); i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3u;
    return sum;
}

void rs_ipc_seal(const struct rs_ipc_handle *from, CUipcMemHandle *to)
{
    struct rs_ipc_handle sealed = *from;

    RS_ASSERT(from->slot < RS_IPC_SLOTS && from->generation != 0); /* as rs_ipc_read asks */
    sealed.sum = sum_of(&sealed);
    memcpy(to, &sealed, sizeof(*to));
}

bool rs_ipc_read(const CUipcMemHandle *from, struct rs_ipc_handle *to)
{
    memcpy(to, from, sizeof(*to));
    return memcmp(to->magic, rs_ipc_magic, sizeof(rs_ipc_magic)) == 0 && to->sum == sum_of(to) &&
           to->slot < RS_IPC_SLOTS && to->process > 0 && to->fd >= 0 && to->generation != 0;
}
