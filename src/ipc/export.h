/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA IPC, the exporter's side: makes handles for live blocks, and holds freed blocks that another
 * process still has open.  See ipc/table.h.  All functions are thread safe. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>

struct rs_context;

/* Answers cuIpcGetMemHandle.  The first block that fills a driver allocation of its own gets the
 * driver's handle.  Every other block of device memory, also a later one at the same place, gets a
 * handle of ours.  Returns true with the answer in *result.  Returns false when the call must be
 * forwarded to the driver: the memory is not ours, or is not device memory, `handle` is NULL, or
 * the driver has no IPC. */
bool rs_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);

/* Ends the export of a block that is being freed (taken->exported is not RS_EXPORTED_NOT): no
 * process can open it any more by a handle of ours. Returns true when another process has it open
 * by such a handle, or the kernel does not tell: the block is then held here, and the caller must
 * not deallocate it. In that case this call has waited for the GPU as cudaFree does. Returns false
 * for a block with the driver's own handle. */
bool rs_export_end(struct rs_taken_block *taken);

/* Must follow the deallocation of a block that was exported by the driver's own handle. As long as
 * a driver allocation lives whose own handle was given out, no other block may get that handle. If
 * the driver has the allocation back, this function forgets that the handle was given out. */
void rs_export_freed(const struct rs_taken_block *taken);

/* Deallocates held blocks that no process has open any more; it looks at the oldest one only, or at
 * all of them.  Blocks of a context that may be ending stay held, and so do blocks whose free would
 * wait for work. (On a driver without fences the library cannot tell whether a free would wait;
 * there the free is made, but only outside a request, base/request.h.) The caller holds no lock. */
RS_COLD void rs_export_collect(bool all);

/* The number of held blocks. They also count in rs_attention (shared/commands.h), so that hooked
 * calls notice them. */
extern _Atomic size_t rs_export_held;

/* Called when a context has ended, and memory with it: rs_export_forget frees the slot of one
 * exported block (0 or RS_EXPORTED_NATIVE: there is none), rs_export_forget_held the slots of all
 * held blocks of the context, and forgets the context's shared pools. */
void rs_export_forget(unsigned exported);
void rs_export_forget_held(const struct rs_context *context);
