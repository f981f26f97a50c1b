/* SPDX-License-Identifier: Apache-2.0 */
/* Access to a context's memory from other devices (cuCtxEnablePeerAccess).  The driver itself
 * covers memory of cuMemAlloc; stacks with a driver's pool or mappings must be told.  All functions
 * are thread safe. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

/* Notes that the current context may access the memory of `owner` from now on, or no longer, and
 * tells the stacks of `owner`; stacks made later follow too.  Returns an error when a stack could
 * not be told: then nothing has changed, and the caller must undo the driver's own call. */
CUresult rs_peer_changed(CUcontext owner, bool allowed);

/* Gives the device's primary context access to the memory of `owner`, without the program having
 * asked: the program does not see it (rs_peer_is_lent).  False when the driver refuses or no
 * primary context is active. */
bool rs_peer_lend(CUcontext owner, CUdevice device);

/* True when the current context's access to the memory of `owner` was given by rs_peer_lend and not
 * by the program. */
bool rs_peer_is_lent(CUcontext owner);

/* Makes such an access the program's own, as it has now asked for it.  False when it was the
 * program's before. */
bool rs_peer_end_loan(CUcontext owner);

/* Returns the devices with a context that may access the memory of `owner`; bit i: device i. */
uint64_t rs_peer_devices(CUcontext handle);

/* Forgets a context that has ended, by the id that it had; its handle may be another one's now. */
void rs_peer_forget(CUcontext handle, unsigned long long id);
