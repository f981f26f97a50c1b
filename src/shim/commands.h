/* SPDX-License-Identifier: Apache-2.0 */
/* Work that other processes have left for the next hooked call: exported blocks that another
 * process has closed (ipc/export.h), idle memory that another process of the job lacks
 * (charge/charge.h), and commands of the tool (shared/commands.h). */
#pragma once

#include "shared/commands.h"

/* Does that work in a free.  A command makes no driver call that waits for work, wherever it is
 * carried out.  No lock may be held. */
RS_COLD void rs_poll_commands_now(void);

/* Does it inside an allocation, a question or a wait for one stream or event, where no driver call
 * may wait without bound (base/request.h). */
RS_COLD void rs_poll_commands_in_request_now(void);

/* The functions below are for a process that stacks serve (config/mode.h): a child that was forked
 * without its handlers has no copy of the memory that the word lies in. */
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

/* Called when the program has waited for all work of a context: gives back what commands have left
 * to such a wait. */
void rs_shim_waited_for_all(void);

/* Starts the thread that takes commands while the program makes no call (RMM_CONTROL=thread). */
void rs_shim_commands_thread(void);
