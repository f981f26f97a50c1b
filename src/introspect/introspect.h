/* SPDX-License-Identifier: Apache-2.0 */
/* Whose memory an address is, so that a block of ours looks as if the driver had allocated it by
 * itself; the attribute SYNC_MEMOPS of blocks; and access of other devices.  All functions are
 * thread safe. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

enum rs_introspected {
    RS_INTROSPECTED_FOREIGN, /* the memory is not ours: forward the call */
    RS_INTROSPECTED_BLOCK,   /* the address lies in a live block: correct the answers */
    RS_INTROSPECTED_OPENED,  /* the address lies in another process's block that is open here:
                                correct the range */
    RS_INTROSPECTED_FREED, /* the memory is ours or another process's, but in no live block: answer
                              as for an unknown address */
};

struct rs_introspection {
    enum rs_introspected what;
    struct rs_block_view block; /* of an opened block its address and size alone */
};

struct rs_introspection rs_introspect(CUdeviceptr address);

/* The same for a caller that has asked whether stacks serve (rs_mode_serving). */
struct rs_introspection rs_introspect_if(bool serving, CUdeviceptr address);

/* Returns an address that the driver does not know, to ask about in place of one inside our idle
 * memory. */
CUdeviceptr rs_introspect_unknown_address(void);

/* ---- SYNC_MEMOPS ----
 *
 * The driver keeps this attribute for a driver allocation, which many blocks share.  The driver's
 * attribute is set as long as one live block wants it: copies of its neighbours then wait more,
 * never less. Each block answers for itself, and a reused block starts without it.
 *
 * Managed memory starts with the attribute set (measured on an H200), and so do managed blocks.
 * There it is never unset in the driver, as copies of neighbours would then wait less. */

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

/* ---- access of other devices ----
 *
 * To a context's memory (cuCtxEnablePeerAccess).  The driver itself covers memory of cuMemAlloc;
 * stacks with a driver's pool or mappings must be told. */

/* Notes that the current context may access the memory of `owner` from now on, or no longer, and
 * tells the stacks of `owner`; stacks made later follow too.  Returns an error when a stack could
 * not be told: then nothing has changed, and the caller must undo the driver's own call. */
CUresult rs_peer_changed(CUcontext owner, bool allowed);

/* Gives the device's primary context access to the memory of `owner`, without the program having
 * asked: the program does not see it (rs_peer_is_lent).  False when the driver refuses or no
 * primary context is active. */
bool rs_peer_lend(CUcontext owner, CUdevice device);

/* True when the current context's access to the memory of `owner` was given by rs_peer_lend and not
 * by the program.  With `ends` it is the program's own from now on, as it has asked for it. */
bool rs_peer_is_lent(CUcontext owner, bool ends);

/* Returns the devices with a context that may access the memory of `owner`; bit i: device i. */
uint64_t rs_peer_devices(CUcontext handle);

/* Forgets a context that has ended, by the id that it had; its handle may be another one's now. */
void rs_peer_forget(CUcontext handle, unsigned long long id);
