/* SPDX-License-Identifier: Apache-2.0 */
/* Call sites: who asked for a block.  A site is a stack of return addresses and, in a process
 * that runs Python, the Python frames above them.  Equal sites share one record, which lives as
 * long as the process, so memory stays bounded however many blocks there are. */
#pragma once

#include "trace/line.h"

enum { RS_CALL_SITE_FRAMES_MAX = 32 }; /* the innermost ones */

struct rs_call_site {
    struct rs_once once;
    unsigned frame_count, line_count;
    /* Return addresses, innermost first, without our own; behind them the lines (rs_site_line). */
    const void *frames[];
};

/* Returns a Python frame, number 0 being the innermost, as "FILE:LINE in FUNCTION". */
static inline const struct rs_line *rs_site_line(const struct rs_call_site *site, unsigned number)
{
    RS_ASSERT(number < site->line_count);
    return site->frames[site->frame_count + number];
}

/* Returns the site of the calling thread.  NULL: the caller is not known (libgcc_s.so.1 is
 * missing), host memory is short, or the table is full.  Holds no lock while it unwinds or asks
 * Python, since the first use in a process loads a library.  Thread safe, but not for signal
 * handlers. */
const struct rs_call_site *rs_call_site_here(void);

/* ---- what a text says of a call site ---- */

/* How many frames at the top of a site are the CUDA runtime's, and this library's between them: a
 * program is told where it calls the runtime, not where that calls the driver. */
unsigned rs_site_frames_outside(const struct rs_call_site *site);

/* Collects the frames below the first `outside` that say something beside the site's Python lines:
 * without the interpreter's, and without the C library's that have called these.  Returns how many
 * there are. */
unsigned rs_site_frames_to_say(const struct rs_call_site *site, unsigned outside,
                               const void *frames[RS_CALL_SITE_FRAMES_MAX]);

/* Writes the innermost callers as a part of a line: "; the block was allocated at FILE:LINE in
 * FUNCTION, from
 * ...".  Empty for NULL.  Takes no lock of the loader that a constructor runs under. */
void rs_site_describe(const struct rs_call_site *site, char *text, size_t room);
