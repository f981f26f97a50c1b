/* SPDX-License-Identifier: Apache-2.0 */
/* SYNC_MEMOPS of blocks.
 *
 * The driver keeps it for an allocation of its own, which many blocks share.  There it is set for
 * as long as one live block wants it (its neighbours' copies then wait more, never less); each
 * block answers for itself, and a reused block starts without.
 *
 * The driver's managed memory starts with it (measured on an H200), and so do blocks of that kind:
 * there the driver's is never taken back, as a neighbour's copies would then wait less. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdbool.h>

/* cuPointerSetAttribute(SYNC_MEMOPS) on an address inside a live block: the driver's answer. */
CUresult rs_sync_memops_set(CUdeviceptr address, enum rs_kind kind, bool wanted);

/* What a live block of a kind answers, where the driver answers this about its allocation. */
bool rs_sync_memops_get(CUdeviceptr address, enum rs_kind kind, bool of_the_driver);

/* The driver set it by itself, for that address. */
void rs_sync_memops_note(CUdeviceptr address);

/* A block that the program frees, already out of sight. */
void rs_sync_memops_freed(const struct rs_taken_block *block);
