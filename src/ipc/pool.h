/* SPDX-License-Identifier: Apache-2.0 */
/* Shares memory of a driver's pool with other processes. The pool of `async`, where it can be
 * shared (its option ipc), goes to the other process as a file descriptor (ipc/transfer.h). Each
 * allocation in it goes as 64 bytes that mean something only together with the pool.
 *
 * An importer must free an allocation before the exporter does. The exporter holds a freed block
 * while another process has it open (ipc/table.h), and the importer frees its allocation before it
 * unlocks the slot. This follows cuda.h and was not seen on hardware yet. */
#pragma once

#include "context/block.h"
#include "ipc/table.h"

/* ---- the exporter; thread safe ---- */

/* Finds the allocation of a driver's pool in which the block lies, and describes it in `pool`,
 * `pooled`, `offset_bytes` and `allocation_bytes` of *place. Returns CUDA_ERROR_NOT_SUPPORTED when
 * the block is in no pool or its pool cannot be shared; CUDA_ERROR_OUT_OF_MEMORY when the process
 * has no memory or descriptor left; else the driver's error. */
CUresult rs_pool_find(const struct rs_block_view *block, struct rs_ipc_slot *place);

/* Returns a new descriptor, close-on-exec, for the pool of that number; -1 when there is none. */
int rs_pool_descriptor(uint64_t number);

/* Forgets the pools of an ended context, before another context can get a pool with such a
 * handle. */
void rs_pool_forget(CUcontext context);

/* ---- the importer; the caller holds a lock of its own around the calls ---- */

struct rs_imported_pool;

/* Imports the allocation of a slot, and its pool if that is not imported yet, and gives the device
 * of the current context access. The same allocation must not be imported twice without
 * rs_pool_leave in between: a driver unmaps it with the first free (NVIDIA's bug 5570902, as
 * cuda.core tells). */
CUresult rs_pool_import(const struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                        const struct rs_ipc_slot *slot, struct rs_imported_pool **pool,
                        CUdeviceptr *address);

/* Frees the allocation, and the pool with its last one. No work may use the memory any more. */
CUresult rs_pool_leave(struct rs_imported_pool *pool, CUdeviceptr address);
