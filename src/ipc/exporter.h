/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of other processes that are open here (ipc/table.h): finding them, registering in them,
 * and what is said when that cannot be.  All but rs_ipc_refuse under a lock of the caller's. */
#pragma once

#include "ipc/table.h"

struct rs_exporter;

/* The table that the handle is of, open from now on; NULL with the refusal in *result. */
struct rs_exporter *rs_exporter_use(const struct rs_ipc_handle *handle, CUresult *result);

/* Once for each use.  The last one drops all locks. */
void rs_exporter_leave(struct rs_exporter *exporter);

/* Registers for the handle's block, then reads what lies behind the handle: while the lock is held
 * the exporter does not change it.  False with the refusal in *result; the lock may be held. */
bool rs_exporter_lock(struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                      struct rs_ipc_slot *slot, CUresult *result);
void rs_exporter_unlock(struct rs_exporter *exporter, uint32_t slot);

enum rs_ipc_refusal {
    RS_IPC_REFUSED_HANDLE,
    RS_IPC_REFUSED_NAMESPACE,
    RS_IPC_REFUSED_ENDED,
    RS_IPC_REFUSED_HIDDEN,
    RS_IPC_REFUSED_ACCESS,
    RS_IPC_REFUSED_TABLE,
    RS_IPC_REFUSED_LOCK,
    RS_IPC_REFUSED_FREED,
    RS_IPC_REFUSED_SIZE,
};

/* Says why an open is refused, once for each reason, and returns the error. */
CUresult rs_ipc_refuse(enum rs_ipc_refusal why);
