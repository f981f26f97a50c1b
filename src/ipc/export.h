/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA IPC, the exporter's side: handles for live blocks, and freed blocks that another process
 * still has open.  See ipc/table.h. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>

struct rs_context;

/* cuIpcGetMemHandle.  A block that is a driver allocation of its own has the driver's handle, any
 * other one of ours.  False when the call is not ours to answer. */
bool rs_export(CUdeviceptr address, CUipcMemHandle *handle, CUresult *result);

/* The block is freed, and can no longer be opened (taken->exported is not 0).  True when another
 * process has it open: then it is held here and must not be deallocated now. */
bool rs_export_end(struct rs_taken_block *taken);

/* The block was deallocated.  What was exported as a driver allocation of its own may now be handed
 * out in parts, which the driver's handle must not name. */
void rs_export_freed(const struct rs_taken_block *taken);

/* Deallocates held blocks that nobody has open any more: one at a time, or all of them.  No lock
 * may be held.  Does nothing while a context ends. */
RS_COLD void rs_export_collect(bool all);

/* Blocks that are held now; as many are counted in rs_attention (shared/commands.h), so that calls
 * see it. */
extern _Atomic size_t rs_export_held;

/* The memory of an exported block is gone with its context. */
void rs_export_forget(unsigned exported);
void rs_export_forget_held(const struct rs_context *context);
