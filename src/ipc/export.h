/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA IPC, the exporter's side: makes handles for live blocks, and holds freed blocks that another
 * process still has open. How this works is told in ipc/table.h. All functions are thread safe. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>

struct rs_context;

/* Answers cuIpcGetMemHandle. A block that fills a whole driver allocation gets the driver's own
 * handle, unless an earlier block has had it. Every other block of device memory gets a handle of
 * ours. Returns true with the answer in *result. Returns false when the call must be forwarded to
 * the driver: `handle` is NULL, the driver has no IPC, or no device memory that the library knows
 * is at the address. */
bool rs_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);

/* Ends the export of a block that is being freed (taken->exported is not RS_EXPORTED_NOT): no
 * process can open it by a handle of ours any more. Returns true when another process has the block
 * open by such a handle, or the kernel does not tell. The block is then held here, the caller must
 * not deallocate it, and this call has waited for the GPU as cudaFree does. Returns false for a
 * block with the driver's own handle. */
bool rs_export_end(struct rs_taken_block *taken);

/* Must follow the deallocation of a block that had the driver's own handle. No other block may get
 * that handle while the driver allocation lives. If the allocation went back to the driver, this
 * forgets that its handle was given out. */
void rs_export_freed(const struct rs_taken_block *taken);

/* Deallocates held blocks that no process has open any more: only the oldest one, or with `all`
 * each of them. A block stays held if its context may be ending, or if its free would wait for
 * work. A driver without fences does not tell whether a free would wait; there the free is made,
 * but only outside a request (base/request.h). The caller holds no lock. */
RS_COLD void rs_export_collect(bool all);

/* The number of held blocks. They also count in rs_attention (shared/commands.h), so that hooked
 * calls notice them. */
extern _Atomic size_t rs_export_held;

/* Called when a context has ended, and its memory with it. rs_export_forget frees the slot of one
 * block, if it has one (not 0 or RS_EXPORTED_NATIVE). rs_export_forget_held frees the slots of the
 * context's held blocks, and forgets its shared pools. */
void rs_export_forget(unsigned exported);
void rs_export_forget_held(const struct rs_context *context);
