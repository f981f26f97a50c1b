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
 * driver's handle; every other block of device memory, also a later one at the same place, gets a
 * handle of ours.  False when the call must be forwarded to the driver: not our memory, another
 * kind of memory, or handle is NULL. */
bool rs_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);

/* Ends the export of a block that is being freed (taken->exported is not 0): no process can open it
 * any more.  True when another process has it open; the block is then held here, the caller must
 * not deallocate it, and this call has waited for the GPU as cudaFree does. */
bool rs_export_end(struct rs_taken_block *taken);

/* Must follow the deallocation of an exported block.  While the driver allocation lives on, its
 * native handle must not name another block; once the driver has it back, the note of that is
 * dropped. */
void rs_export_freed(const struct rs_taken_block *taken);

/* Deallocates held blocks that no process has open any more: looks at the oldest one, or at all of
 * them.  Those of a context that may be ending, and those whose free would wait for work, stay
 * held; but outside a request (base/request.h) such a free waits where the driver has no fences.
 * The caller holds no lock. */
RS_COLD void rs_export_collect(bool all);

/* Number of held blocks.  rs_attention (shared/commands.h) counts as many, so that calls notice
 * them. */
extern _Atomic size_t rs_export_held;

/* The memory of an exported block, or of all held blocks of a context, is gone with the context:
 * their slots become free. */
void rs_export_forget(unsigned exported);
void rs_export_forget_held(const struct rs_context *context);
