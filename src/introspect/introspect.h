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
    RS_INTROSPECTED_OPENED,  /* the address lies in a block that another process exported and this
                                one has open: correct the range */
    /* The address lies in our memory, or in memory of another process that is open here, but in no
     * live block: answer as for an unknown address. */
    RS_INTROSPECTED_FREED,
};

struct rs_introspection {
    enum rs_introspected what;
    struct rs_block_view block; /* of an opened block only its address and size are set */
};

struct rs_introspection rs_introspect(CUdeviceptr address);

/* The same for a caller that already knows whether stacks serve (rs_mode_serving). */
struct rs_introspection rs_introspect_if(bool serving, CUdeviceptr address);

/* Returns an address that the driver does not know.  Hooks ask the driver about it in place of an
 * address inside memory of ours that is in no live block. */
CUdeviceptr rs_introspect_unknown_address(void);

/* ---- SYNC_MEMOPS ----
 *
 * The driver keeps this attribute for each driver allocation, which many blocks may share. The
 * driver's attribute stays set as long as any live block wants it; copies of neighbouring blocks
 * may then be synchronous without need, but every copy that must be synchronous is. Questions about
 * a block are answered with the block's own setting, and a reused block starts without it.
 *
 * Managed memory starts with the attribute set (measured on an H200), and so do managed blocks. For
 * managed memory the attribute is never unset in the driver, since copies of neighbouring blocks
 * would then no longer wait. */

/* Answers cuPointerSetAttribute(SYNC_MEMOPS) for an address inside a live block.  Returns the
 * result for the program, which is the driver's error if the driver refuses. */
CUresult rs_sync_memops_set(CUdeviceptr address, enum rs_kind kind, bool wanted);

/* Returns a live block's own setting of the attribute. of_the_driver is the driver's setting for
 * the allocation in which the block lies. */
bool rs_sync_memops_get(CUdeviceptr address, enum rs_kind kind, bool of_the_driver);

/* Notes that the driver set the attribute by itself for the block at that address, as it does when
 * asked for P2P tokens. */
void rs_sync_memops_note(CUdeviceptr address);

/* Called for a block that is being freed, when look-ups no longer find it. If the program had set
 * the attribute for the block, and no other live block wants it, unsets it in the driver. */
void rs_sync_memops_freed(const struct rs_taken_block *block);

/* ---- access of other devices ----
 *
 * cuCtxEnablePeerAccess gives other devices access to a context's memory.  The driver does that for
 * memory of cuMemAlloc; stacks over a driver pool or over mappings must be told. */

/* Notes that the current context may access the memory of `owner` from now on (`allowed`) or no
 * longer, and tells the stacks of `owner`. Stacks that are made later follow too. With `allowed` it
 * may fail, for lack of host memory or because a stack cannot be told. Then it returns the error,
 * nothing has changed here, and the caller must undo the driver's own call. */
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

/* Returns the devices that have a context which may access the memory of `handle`; bit i: device i.
 */
uint64_t rs_peer_devices(CUcontext handle);

/* Forgets a context that has ended.  The id is needed since another context may have its handle by
 * now. */
void rs_peer_forget(CUcontext handle, unsigned long long id);
