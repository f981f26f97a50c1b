/* SPDX-License-Identifier: Apache-2.0 */
/* The attribute SYNC_MEMOPS of blocks.
 *
 * The driver keeps it for a driver allocation, which many blocks share.  The driver's attribute is
 * set as long as one live block wants it: copies of its neighbours then wait more, never less. Each
 * block answers for itself, and a reused block starts without it.
 *
 * Managed memory starts with the attribute set (measured on an H200), and so do managed blocks.
 * There it is never unset in the driver, as copies of neighbours would then wait less. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdbool.h>

/* Answers cuPointerSetAttribute(SYNC_MEMOPS) for an address inside a live block. */
CUresult rs_sync_memops_set(CUdeviceptr address, enum rs_kind kind, bool wanted);

/* Returns the attribute of a live block; of_the_driver is the driver's answer about its allocation.
 */
bool rs_sync_memops_get(CUdeviceptr address, enum rs_kind kind, bool of_the_driver);

/* Notes that the driver set the attribute by itself for the block at that address (asking for P2P
 * tokens does). */
void rs_sync_memops_note(CUdeviceptr address);

/* Unsets the attribute for a block that is being freed, in the driver too if no other live block
 * wants it.  Look-ups must not find the block any more. */
void rs_sync_memops_freed(const struct rs_taken_block *block);
