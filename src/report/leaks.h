/* SPDX-License-Identifier: Apache-2.0 */
/* The leak report (RMM_TRACKING): blocks that were live at exit, or when their context ended, by
 * the call site that allocated them. */
#pragma once

#include "context/context.h"

/* Notes what is live in a stack whose memory is gone.  Under the contexts' lock; calls nothing of
 * the driver's. */
void rs_leaks_note_gone(const struct rs_stack *stack, struct rs_mr *mr);

/* Writes the report where RMM_TRACKING says.  As text it is silent on stderr when nothing leaked.
 */
void rs_leaks_write(void);

/* Takes the report's file for this process. */
void rs_leaks_claim(void);
