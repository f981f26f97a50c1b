/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for which the driver takes memory of its own: modules, graphs, streams, contexts and their
 * kin.  Where the driver is out of memory while stacks hold memory that nobody uses, they give it
 * back, and the call is made again.  For calls alone that leave nothing behind when they fail. */
#pragma once

#include "base/check.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stdint.h>

/* Other threads may take what was given back: it is tried this often, then they have won. */
enum { RS_AGAIN_TRIES = 16 };

/* Instead of a device: the current context's; and the same where host memory may be what is
 * missing, for which nobody waits. */
enum { RS_AGAIN_CURRENT = -1, RS_AGAIN_CURRENT_AT_ONCE = -2 };

/* After a call of the driver's.  True when it is to be made again: it was out of memory, and
 * something of the device was given back since, perhaps after a wait; *deadline_ns is when all
 * waits for this call end, 0 at first.  The thread's current context stays as it is.  Thread safe;
 * no lock may be held. */
RS_COLD bool rs_again(CUresult result, int device, uint64_t *deadline_ns);

/* Makes the call, and again while that may help.  `device` is looked at only then. */
#define RS_AGAIN(result, device, call)                                                             \
    do {                                                                                           \
        int tries_left_ = RS_AGAIN_TRIES;                                                          \
        uint64_t deadline_ns_ = 0;                                                                 \
        do                                                                                         \
            (result) = call;                                                                       \
        while (RS_UNLIKELY((result) == CUDA_ERROR_OUT_OF_MEMORY) && --tries_left_ > 0 &&           \
               rs_again(result, device, &deadline_ns_));                                           \
    } while (0)
