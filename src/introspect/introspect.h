/* SPDX-License-Identifier: Apache-2.0 */
/* Tells whose memory an address is, so that hooks can make a block of ours look like an allocation
 * of the driver.  Also keeps the attribute SYNC_MEMOPS of blocks, and the access of other devices.
 * All functions are thread safe. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdbool.h>

enum rs_introspected {
    RS_INTROSPECTED_FOREIGN, /* the memory is not ours: forward the call */
    RS_INTROSPECTED_BLOCK,   /* the address lies in a live block: correct the answers */
    RS_INTROSPECTED_OPENED,  /* the address lies in another process's block that is open here:
                                correct the range */
    RS_INTROSPECTED_FREED,   /* the address lies in our memory, or in another process's that is open
                                here, but in no live block: answer as for an unknown address */
};

struct rs_introspection {
    enum rs_introspected what;
    struct rs_block_view block; /* of an opened block only its address and size are set */
};

struct rs_introspection rs_introspect(CUdeviceptr address);

/* Does as rs_introspect, for a caller that already knows whether stacks serve (rs_mode_serving). */
struct rs_introspection rs_introspect_if(bool serving, CUdeviceptr address);

/* Returns an address that the driver does not know.  Hooks ask the driver about it in place of an
 * address inside memory of ours that is in no live block. */
CUdeviceptr rs_introspect_unknown_address(void);

/* ---- SYNC_MEMOPS ----
 *
 * The driver keeps this attribute for each driver allocation, which many blocks may share.  The
 * driver's attribute stays set as long as any live block wants it; copies of neighbouring blocks
 * may then wait for their end without need, but none fails to wait.  Questions about a block are
 * answered with the block's own setting, and a reused block starts without it.
 *
 * Managed memory starts with the attribute set (measured on an H200), and so do managed blocks.
 * For managed memory the attribute is never unset in the driver, since copies of neighbouring
 * blocks would then no longer wait. */

/* Answers cuPointerSetAttribute(SYNC_MEMOPS) for an address inside a live block.  Returns the
 * result for the program, which is the driver's error if the driver refuses. */
CUresult rs_sync_memops_set(CUdeviceptr address, enum rs_kind kind, bool wanted);

/* Returns the attribute of a live block; of_the_driver is the driver's answer about its allocation.
 */
bool rs_sync_memops_get(CUdeviceptr address, enum rs_kind kind, bool of_the_driver);

/* Notes that the driver set the attribute by itself for the block at that address (asking for P2P
 * tokens does). */
void rs_sync_memops_note(CUdeviceptr address);

/* Unsets the attribute for a block that is being freed, in the driver too if no other live block
 * wants it.  Called when look-ups no longer find the block. */
void rs_sync_memops_freed(const struct rs_taken_block *block);

/* ---- access of other devices ----
 *
 * cuCtxEnablePeerAccess gives other devices access to a context's memory.  The driver does that for
 * memory of cuMemAlloc; stacks over a driver pool or over mappings must be told. */

/* Notes that the current context may access the memory of `owner` from now on, or no longer, and
 * tells the stacks of `owner`; stacks made later follow too. Returns an error when new access
 * cannot be noted for lack of host memory, or a stack cannot be told of it: then nothing has
 * changed here, and the caller must undo the driver's own call. The end of access never fails. */
CUresult rs_peer_changed(CUcontext owner, bool allowed);

/* Gives the device's primary context access to the memory of `owner`, for the library's own use.
 * The program has not asked for this access and must not notice it (rs_peer_is_lent). Returns true
 * if the context has access now; false when no primary context is active, or when the driver
 * refuses or a stack cannot be told. */
bool rs_peer_lend(CUcontext owner, CUdevice device);

/* True when the current context's access to the memory of `owner` was given by rs_peer_lend and not
 * by the program.  If `ends` is set, the access counts as given by the program from now on, since
 * the program has just asked for it. */
bool rs_peer_is_lent(CUcontext owner, bool ends);

/* Returns the devices with a context that may access the memory of the context `handle`; bit i:
 * device i. */
uint64_t rs_peer_devices(CUcontext handle);

/* Forgets a context that has ended.  The id is needed since another context may have its handle by
 * now. */
void rs_peer_forget(CUcontext handle, unsigned long long id);
