/* SPDX-License-Identifier: Apache-2.0 */
/* Call sites: the code that asked for a block. A site is a stack of return addresses and, in a
 * process that runs Python, the lines of the innermost Python frames. Equal sites share one record,
 * which lives as long as the process, so memory stays bounded however many blocks there are. */
#pragma once

#include "trace/line.h"

enum { RS_CALL_SITE_FRAMES_MAX = 32 }; /* the most frames that a site keeps, the innermost ones */

struct rs_call_site {
    struct rs_once once;
    unsigned frame_count, line_count;
    /* Return addresses, innermost first, without those in this library at the beginning; after them
     * come pointers to the Python lines (rs_site_line). */
    const void *frames[];
};

/* Returns the line of a Python frame, "FILE:LINE in FUNCTION"; number 0 is the innermost frame. */
static inline const struct rs_line *rs_site_line(const struct rs_call_site *site, unsigned number)
{
    RS_ASSERT(number < site->line_count);
    return site->frames[site->frame_count + number];
}

/* Returns the call site of the calling thread. Returns NULL when neither the caller (libgcc_s.so.1
 * may be missing) nor a Python line can be found, host memory is short, or the table is full. Holds
 * no lock while it unwinds or asks Python, since the first use in a process loads a library. Thread
 * safe, but must not be called in a signal handler. */
const struct rs_call_site *rs_call_site_here(void);

/* ---- what a text says of a call site ---- */

/* Returns how many frames at the top of a site belong to the CUDA runtime or to this library; 0 if
 * every frame of the site does.  Reports leave these frames out: a user wants to know where the
 * program calls the runtime, not where the runtime calls the driver. */
unsigned rs_site_frames_outside(const struct rs_call_site *site);

/* Skips the first `outside` frames of a site, stores in `frames` those of the rest that a report
 * shows, and returns their number. If the site has Python lines, a report leaves out the frames of
 * the interpreter, and those of the C library and of _start that called the interpreter. */
unsigned rs_site_frames_to_say(const struct rs_call_site *site, unsigned outside,
                               const void *frames[RS_CALL_SITE_FRAMES_MAX]);

/* Writes the innermost callers as a part of a line: "; the block was allocated at FILE:LINE in
 * FUNCTION, from ...". Without Python lines a caller is "FUNCTION (OBJECT+OFFSET)". The text is
 * empty if `site` is NULL. Takes no lock of the loader under which constructors run. */
void rs_site_describe(const struct rs_call_site *site, char *text, size_t room);
