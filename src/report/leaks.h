/* SPDX-License-Identifier: Apache-2.0 */
/* The leak report (RMM_TRACKING): blocks that were live at exit, or when their context ended, by
 * the call site that allocated them. */
#pragma once

#include "context/context.h"

/* Notes the live blocks of a stack whose memory is gone.  The caller holds the contexts' lock.
 * Makes no driver call. */
void rs_leaks_note_gone(const struct rs_stack *stack, struct rs_mr *mr);

/* Writes the report to the place that RMM_TRACKING gives.  As text it says so when no
 * block leaked, and writes nothing where no device was used. */
void rs_leaks_write(void);

/* Claims the report's file for this process (rs_page_claim). */
void rs_leaks_claim(void);
