/* SPDX-License-Identifier: Apache-2.0 */
/* Access to a context's memory from other devices, as cuCtxEnablePeerAccess gives it.  The driver
 * itself sees to what cuMemAlloc made; our pools and mappings must be told. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

/* The current context may reach the memory of `owner` from now on, or no longer.  Known before any
 * stack is made, so that a stack made later follows.  An error when a stack could not be told: then
 * nothing has changed, and the driver's own call is to be undone.  Thread safe. */
CUresult rs_peer_changed(CUcontext owner, bool allowed);

/* Gives the device's primary context access to the memory of `owner` as cuCtxEnablePeerAccess does,
 * which the program has not asked for: it sees none of it (rs_peer_is_lent).  False when it could
 * not be given.  Thread safe. */
bool rs_peer_lend(CUcontext owner, CUdevice device);

/* The current context's access to the memory of `owner` is not by the program's doing. */
bool rs_peer_is_lent(CUcontext owner);

/* From now on it is.  False when it was before. */
bool rs_peer_end_loan(CUcontext owner);

/* The devices with a context that may reach the memory of this one, a bit each. */
uint64_t rs_peer_devices(CUcontext handle);

/* The context is no more; its handle may come back for another. */
void rs_peer_forget(CUcontext handle);
