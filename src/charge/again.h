/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for which the driver takes memory of its own: modules, graphs, streams, contexts and the
 * like.  When the driver is out of memory while stacks hold unused memory, the stacks give it back
 * and the call is made again.  Only for calls that leave nothing behind when they fail. */
#pragma once

#include "base/check.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How often one call is made.  Other threads may take the memory that was given back; after 16
 * tries they have won. */
enum { RS_AGAIN_TRIES = 16 };

/* In place of a device's number: the current context's device. */
enum { RS_AGAIN_CURRENT = -1 };

/* True when the driver's call that answered `result` is to be made again: it was out of memory, and
 * memory of the device, or, for a call that takes host_bytes of the host's memory, of the host, was
 * given back since, perhaps after a wait.  *deadline_ns, 0 before the first try, is when all waits
 * for this call end.  The thread's current context stays as it is.  Thread safe; no lock may be
 * held. */
RS_COLD bool rs_again(CUresult result, int device, size_t host_bytes, uint64_t *deadline_ns);

/* The program is about to get the driver's out-of-memory error: counts it (context/limit.h).
 * Returns that error. */
RS_COLD CUresult rs_again_refused(int device, size_t host_bytes);

/* The result of a driver call that is made again while rs_again says so, for the program.  An
 * expression; `device` is evaluated only after an out-of-memory error. */
#define RS_AGAIN(device, call)          RS_AGAIN_TOLD(device, 0, call)
#define RS_AGAIN_HOST(size_bytes, call) RS_AGAIN_TOLD(RS_AGAIN_CURRENT, size_bytes, call)

#define RS_AGAIN_TOLD(device, host_bytes, call)                                                    \
    ({                                                                                             \
        CUresult told_ = RS_AGAIN_FOR(device, host_bytes, call);                                   \
        RS_UNLIKELY(told_ == CUDA_ERROR_OUT_OF_MEMORY) ? rs_again_refused(device, host_bytes)      \
                                                       : told_;                                    \
    })

/* The same where the caller counts what the program is told. */
#define RS_AGAIN_FOR(device, host_bytes, call)                                                     \
    ({                                                                                             \
        int tries_left_ = RS_AGAIN_TRIES;                                                          \
        uint64_t deadline_ns_ = 0;                                                                 \
        CUresult result_;                                                                          \
        do                                                                                         \
            result_ = (call);                                                                      \
        while (RS_UNLIKELY(result_ == CUDA_ERROR_OUT_OF_MEMORY) && --tries_left_ > 0 &&            \
               rs_again(result_, device, host_bytes, &deadline_ns_));                              \
        result_;                                                                                   \
    })
