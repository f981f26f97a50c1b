/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a driver's pool between processes: the pool beneath `async(ipc=true)` goes to the other
 * process as one file descriptor, and each allocation in it as 64 bytes that mean something only
 * together with the pool.  All functions are thread safe.
 *
 * Nothing of this was seen on hardware yet; it follows cuda.h.  An importer must free an
 * allocation before the exporter does: the exporter holds a freed block while another process has
 * it open (ipc/table.h), so the allocation around it stays, and the importer's free comes before
 * its slot's lock goes. */
#pragma once

#include "driver/cuda.h"
#include "ipc/table.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- the exporter ---- */

/* Makes a file descriptor for the pool that `address` was allocated from, close-on-exec. */
CUresult rs_pool_export(CUdeviceptr address, int *fd);

/* Fills in what a slot says of an allocation: `pool`, `allocation`, and its base and size.  False
 * when it is of no pool, or of one that cannot be shared.  `context` owns the memory. */
struct rs_pool_allocation {
    uint64_t pool; /* number of the pool, never used twice in a process */
    CUmemPoolPtrExportData data;
    CUdeviceptr base;
    size_t size_bytes;
};
bool rs_pool_find(CUdeviceptr address, CUcontext context, struct rs_pool_allocation *allocation);

/* Must follow the end of a context, before another can have a pool with the handle of one of its
 * pools: forgets their numbers. */
void rs_pool_forget(CUcontext context);

/* ---- the importer ---- */

/* An allocation of another process's pool, imported once for all blocks and contexts: a driver
 * unmaps it with its first free, however often it was imported (NVIDIA's bug 5570902, as cuda.core
 * tells). */
struct rs_pooled;

/* Imports the allocation of a slot for the device, or counts one more use of it.  Where its pool is
 * not imported yet, this is done by the descriptor `fd`, which may be closed afterwards; -1: there
 * is none, and the answer is CUDA_ERROR_NOT_READY. */
CUresult rs_pooled_use(const struct rs_ipc_handle *handle, const struct rs_ipc_slot *slot,
                       CUdevice device, int fd, struct rs_pooled **pooled);

CUdeviceptr rs_pooled_address(const struct rs_pooled *pooled);

/* Must follow each successful rs_pooled_use; no work may use the memory any more.  The last one
 * frees the import, and the pool with the last import of it. */
CUresult rs_pooled_leave(struct rs_pooled *pooled);
