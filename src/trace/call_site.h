/* SPDX-License-Identifier: Apache-2.0 */
/* Call sites: who asked for a block.  A site is a stack of return addresses and, in a process
 * that runs Python, the Python frames above them.  Equal sites share one record, which lives as
 * long as the process, so memory stays bounded however many blocks there are. */
#pragma once

#include "trace/line.h"

#include <stdbool.h>
#include <stdint.h>

enum { RS_CALL_SITE_FRAMES_MAX = 32 }; /* the innermost ones */

struct rs_call_site {
    const struct rs_call_site *next; /* the next site with the same hash */
    uint64_t hash;
    unsigned frame_count, line_count;
    const void *const *frames;          /* return addresses, innermost first, without our own */
    const struct rs_line *const *lines; /* Python frames, innermost first, each as
                                           "FILE:LINE in FUNCTION"; none without Python */
};

/* Returns the site of the calling thread.  NULL: the caller is not known (libgcc_s.so.1 is
 * missing), host memory is short, or the table is full.  Holds no lock while it unwinds or asks
 * Python, since the first use in a process loads a library.  Thread safe, but not for signal
 * handlers. */
const struct rs_call_site *rs_call_site_here(void);

/* True for an address in the preloaded library, whatever name its file has. */
bool rs_call_site_is_ours(const void *address);
