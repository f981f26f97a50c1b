/* SPDX-License-Identifier: Apache-2.0 */
/* Idle memory goes from one process of a job to another that the job's limit would refuse
 * (shared/job_limit.h).
 *
 * The process that lacks memory asks those that say that they have some idle, and waits for a
 * bounded time.  A process that is asked looks at its next call that allocates, frees or waits for
 * its work, or at once where it has a thread for commands (RMM_CONTROL=thread), and gives back what
 * is lacking, initial sizes at last.  That is kept for the processes that asked. */
#pragma once

#include "base/check.h"
#include "ledger/account.h"

#include <stdbool.h>

/* Before a request is refused: asks the job's other processes for idle memory of the device.  True
 * when some came back.  Waits at most 1 s and the thread's patience (base/request.h), and not at
 * all where the others have too little idle, or where the job's limit is not what refuses. */
bool rs_job_ask(int device, const struct rs_refusal *refusal);

/* Gives back what others have asked for, and says what is idle now; clears RS_ATTENTION_JOB.  Makes
 * no driver call that waits without bound.  No lock may be held. */
RS_COLD void rs_job_look(void);
