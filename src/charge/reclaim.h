/* SPDX-License-Identifier: Apache-2.0 */
/* Unused memory goes back to the driver when the program asks for it, and before a request of any
 * path is refused. */
#pragma once

#include "base/check.h"
#include "driver/cuda.h"
#include "ledger/account.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Every stack of the device's contexts, pinned memory's too, gives its wholly free memory back to
 * the driver, except keep_bytes in all.  Returns the bytes given back.  Only where stacks serve. No
 * lock may be held.  Thread safe.
 *
 * Memory that only a waiting call of the driver gives back (context/visit.h) stays while its
 * context works; this waits for that up to 1 s, and inside a request (base/request.h) 50 ms.
 * *is_left: some stayed. */
size_t rs_trim(int device, size_t keep_bytes, bool *is_left);

/* Before a request for device memory is refused: every stack for device memory, and then the
 * program's stream-ordered pools and graphs, give their unused memory back, initial sizes at last.
 * may_wait: when nothing came back, waits for quarantined memory, as long as the thread's request
 * may wait (base/request.h), unless the request is larger than all memory that is not live.  True
 * when another try may succeed; false also when it is called from within itself. */
bool rs_reclaim(int device, const struct rs_refusal *refusal, bool may_wait);

/* ---- idle memory goes from one process of a job to another that the job's limit would refuse
 * (shared/job_limit.h).  The process that lacks memory asks those that say that they have some
 * idle, and waits for a bounded time.  A process that is asked looks at its next call that
 * allocates, frees or waits for its work, or at once where it has a thread for commands
 * (RMM_CONTROL=thread), and gives back what is lacking, initial sizes at last.  That is kept for
 * the processes that asked ---- */

/* Gives back what others have asked for, and says what is idle now; clears RS_ATTENTION_JOB.  Makes
 * no driver call that waits without bound.  No lock may be held. */
RS_COLD void rs_job_look(void);

/* ---- calls for which the driver takes memory of its own: modules, graphs, streams, contexts and
 * the like.  When the driver is out of memory while stacks hold unused memory, the stacks give it
 * back and the call is made again.  Only for calls that leave nothing behind when they fail. ----
 */

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
