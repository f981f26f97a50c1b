/* SPDX-License-Identifier: Apache-2.0 */
/* What is not freed: the leak report (RMM_TRACKING) of blocks that were live at exit, or when their
 * context ended, by the call site that allocated them; and a list of the blocks that are live now.
 */
#pragma once

#include "context/context.h"

#include <stdint.h>

/* Notes the live blocks of a stack whose memory is gone.  The caller holds the contexts' lock.
 * Makes no driver call. */
void rs_leaks_note_gone(const struct rs_stack *stack, struct rs_mr *mr);

/* Writes the report to the place that RMM_TRACKING gives.  As text it says so when no
 * block leaked, and writes nothing where no device was used. */
void rs_leaks_write(void);

/* Claims the report's file for this process (rs_page_claim). */
void rs_leaks_claim(void);

/* The list of a device's live blocks that `rmmshim leaks` reads (shared/commands.h): lines in
 * published memory.  Addresses of code are given as they are: the command names them, as it may
 * read files and take its time.
 *
 *   site KIND BYTES BLOCKS ADDRESS...      of a kind that is tracked; addresses in hexadecimal
 *   line TEXT                              a Python frame of that site
 *   library KIND BYTES BLOCKS NAME         of any other kind; "?" where it is not known
 *   size BYTES BLOCKS SMALLEST LARGEST     a part of that library's
 *   more KIND BYTES BLOCKS                 what else is live
 *   end                                    is last; without it the list was cut off
 *
 * KIND is a number (enum rs_kind). */
enum { RS_LIVE_LIST_BYTES = 1 << 20 };

/* Makes the list anew.  Returns 0 and the place of the text in the published file, or -errno:
 * -EBUSY while another thread makes one, -ENOMEM where nothing is published or there is no room.
 * Makes no driver call, does not use malloc, and waits for no lock that is held long. */
int rs_live_list(int device, uint64_t *offset, uint64_t *length_bytes);
