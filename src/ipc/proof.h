/* SPDX-License-Identifier: Apache-2.0 */
/* Whether memory that was opened here still exists: the program may end its context in a way that
 * the library does not see.  The caller holds a lock of its own around the calls. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>

/* Tells by the id of a driver allocation, which is never used twice, or else by its range.  Where
 * the driver tells neither, the memory counts as existing. */
struct rs_proof {
    CUdeviceptr address;
    unsigned long long id; /* 0: the driver tells none */
    bool has_range;
};

/* For the driver allocation at `address`. */
struct rs_proof rs_proof_of(CUdeviceptr address);

/* For the current context, `context`: mapped memory outlives its context.  Takes 512 bytes of the
 * driver's own once in each context, which stay there; where there is no room for them, the context
 * counts as existing. */
struct rs_proof rs_proof_of_context(CUcontext context);

/* False when the memory, or the context, has ended. */
bool rs_proof_holds(const struct rs_proof *proof);
