/* SPDX-License-Identifier: Apache-2.0 */
/* Work that other processes have left for the next hooked call of this one: exported blocks that
 * they have closed (ipc/export.h), requests of processes of the job for idle memory
 * (charge/charge.h), and commands such as `rmmshim trim` (shared/commands.h). */
#pragma once

#include "shared/commands.h"

/* Does the work that other processes have left, inside a free. Commands make no driver call that
 * waits for work of the GPU. The caller holds no lock. */
RS_COLD void rs_poll_commands_now(void);

/* Does the work that other processes have left, inside an allocation, a query, or a wait for one
 * stream or event, where no driver call may wait without bound (base/request.h). */
RS_COLD void rs_poll_commands_in_request_now(void);

/* The three inline functions below may only be called in a process that stacks serve
 * (config/mode.h). They read rs_attention, which lies in memory of which a child of a raw clone()
 * has no copy. */
RS_HOT_INLINE bool rs_shim_has_attention(void)
{
    return RS_UNLIKELY(atomic_load_explicit(rs_attention, memory_order_relaxed) != 0);
}

RS_HOT_INLINE void rs_poll_commands(void)
{
    if (rs_shim_has_attention())
        rs_poll_commands_now();
}

RS_HOT_INLINE void rs_poll_commands_in_request(void)
{
    if (rs_shim_has_attention())
        rs_poll_commands_in_request_now();
}

/* Called when the program has waited for all work of a context: gives back the memory that commands
 * (trim, limit) could not give back while the context worked. */
void rs_shim_waited_for_all(void);

/* Starts the thread that takes commands while the program makes no call (RMM_CONTROL=thread). */
void rs_shim_commands_thread(void);
