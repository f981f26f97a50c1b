/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of other processes that are open here (ipc/table.h): finds them, registers in them,
 * and reports why that fails.  The caller holds a lock of its own around the calls, but for those
 * that need none. */
#pragma once

#include "ipc/table.h"

struct rs_exporter;

/* Returns the table that the handle names, opened if need be; NULL with the CUDA error in *result.
 */
struct rs_exporter *rs_exporter_use(const struct rs_ipc_handle *handle, CUresult *result);

/* Must follow each successful rs_exporter_use.  The last one closes the table, which drops all
 * locks on it. */
void rs_exporter_leave(struct rs_exporter *exporter);

/* Locks the slot of the handle's block, then copies it into *slot: the exporter does not reuse a
 * slot while it is locked.  False with the CUDA error in *result; the lock may then be held, so the
 * caller must call rs_exporter_unlock. */
bool rs_exporter_lock(struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                      struct rs_ipc_slot *slot, CUresult *result);
void rs_exporter_unlock(struct rs_exporter *exporter, uint32_t slot);

/* True while the process that made the handle runs; else false with the CUDA error in *result.
 * Needs no lock. */
bool rs_exporter_is_running(const struct rs_ipc_handle *handle, CUresult *result);

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
    RS_IPC_REFUSED_SOCKET,
    RS_IPC_REFUSED_SILENT,
    RS_IPC_REFUSED_UNSENT,
    RS_IPC_REFUSED_DESCRIPTORS,
};

/* Writes why an open is refused, once for each reason, and returns its CUDA error.  Needs no lock.
 */
CUresult rs_ipc_refuse(enum rs_ipc_refusal why);
