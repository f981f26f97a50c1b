/* SPDX-License-Identifier: Apache-2.0 */
/* SYNC_MEMOPS of blocks.
 *
 * The driver keeps it for an allocation of its own, which many blocks share.  There it is set for
 * as long as one live block wants it (its neighbours' copies then wait more, never less); each
 * block answers for itself, and a reused block starts without. */
#pragma once

#include "driver/cuda.h"
#include "shim/block.h"

#include <stdbool.h>

/* cuPointerSetAttribute(SYNC_MEMOPS) on an address inside a live block: the driver's answer. */
CUresult rs_sync_memops_set(CUdeviceptr address, bool wanted);

/* The driver set it by itself, for that address. */
void rs_sync_memops_note(CUdeviceptr address);

/* A block that the program frees, already out of sight. */
void rs_sync_memops_freed(const struct rs_taken_block *block);
