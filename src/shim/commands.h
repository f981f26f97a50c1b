/* SPDX-License-Identifier: Apache-2.0 */
/* Work that other processes have left for the next hooked call: exported blocks that another
 * process has closed (ipc/export.h), idle memory that another process of the job lacks
 * (charge/charge.h), and commands of the tool (shared/commands.h). */
#pragma once

#include "shared/commands.h"

/* Does the work named above inside a free. A command never makes a driver call that waits for work.
 * The caller holds no lock. */
RS_COLD void rs_poll_commands_now(void);

/* Does the work named above inside an allocation, a query, or a wait for one stream or event, where
 * no driver call may wait without bound (base/request.h). */
RS_COLD void rs_poll_commands_in_request_now(void);

/* The three inline functions below may only be called in a process that stacks serve
 * (config/mode.h): a child of a raw clone(), which runs no fork handlers, has no copy of the memory
 * in which the word of attention lies. */
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
