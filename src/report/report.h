/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the reports at exit. The statistics report (RMM_STATISTICS) has the counters of all
 * stacks, including those of ended contexts. The leak report (RMM_TRACKING) has the blocks that
 * were live at exit, or when their context ended, by the call site that allocated them. Also
 * writes, on demand, the statistics and a list of the live blocks. */
#pragma once

#include "base/log.h"
#include "context/context.h"

#include <stdint.h>

/* Makes rs_report_at_exit write the reports that were asked for. After _exit or a deadly signal
 * nothing is written. */
void rs_report_arm(void);

/* Writes the reports. Runs after all exit handlers, and after other libraries' destructors, since
 * these may still free. Makes no CUDA call, as the driver may be gone. Takes only bounded locks and
 * calls no malloc: a signal handler may have called exit() while the thread held a lock or was
 * inside malloc. */
void rs_report_at_exit(void);

/* Writes the present counters of all stacks. `where` is a value as in RMM_STATISTICS; NULL: as text
 * to stderr. Returns 0, -EINVAL after reporting a bad value, or another -errno after logging it.
 * Thread safe. */
int rs_report_write(const char *where, struct rs_diagnostics *diagnostics);

/* Called when the first context is used, before there is anything to report. Claims the reports'
 * files for this process, and publishes which reports it will write. */
void rs_report_claim(void);

/* Notes the live blocks of a stack whose memory has ended with its context.  The caller holds the
 * contexts' lock.  Makes no driver call. */
void rs_leaks_note_gone(const struct rs_stack *stack, struct rs_mr *mr);

/* The list of a device's live blocks that `rmmshim leaks` reads (shared/commands.h). It consists of
 * lines in published memory. Code addresses are listed as numbers; the command turns them into
 * names, since it may read files and take its time.
 *
 *   site KIND BYTES BLOCKS ADDRESS...   a call site; only for kinds that are tracked
 *   line TEXT                           a Python line of that site
 *   library KIND BYTES BLOCKS NAME      a library, for the other kinds; "?": not known
 *   size BYTES BLOCKS SMALLEST LARGEST  a size class of that library's blocks
 *   more KIND BYTES BLOCKS              all other live blocks of that kind
 *   end                                 the last line; without it the list is incomplete
 *
 * KIND is a number (enum rs_kind). Addresses are in hexadecimal, other numbers in decimal. */
enum { RS_LIVE_LIST_BYTES = 1 << 20 };

/* Makes a new list and stores its place in the published file. Returns 0; -EBUSY while another
 * thread makes a list; -ENOMEM if nothing is published or there is no room. Makes no driver call,
 * does not use malloc, and waits for no lock that is held long. */
int rs_live_list(int device, uint64_t *offset, uint64_t *length_bytes);
