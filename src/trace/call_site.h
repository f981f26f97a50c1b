/* SPDX-License-Identifier: Apache-2.0 */
/* Call sites: who asked for a block.  A site is a stack of return addresses and, in a process
 * that runs Python, the Python frames above them.  Equal sites share one record, which lives as
 * long as the process, so memory stays bounded however many blocks there are. */
#pragma once

#include <stdint.h>

enum {
    RS_CALL_SITE_FRAMES_MAX = 32,        /* the innermost ones */
    RS_CALL_SITE_PYTHON_BYTES = 1024,    /* of text per site */
    RS_CALL_SITE_TABLE_BYTES = 16 << 20, /* of all sites; reserved, pages are taken when used */
};

struct rs_call_site {
    const struct rs_call_site *next; /* the next site with the same hash */
    uint64_t hash;
    unsigned frame_count;
    unsigned python_bytes;
    void *frames[]; /* return addresses, innermost first, without our own; then the Python text */
};

/* Returns the site of the calling thread.  NULL: there is no unwinder (libgcc_s.so.1 is
 * missing), host memory is short, or the table is full.  Holds no lock while it unwinds or asks
 * Python, since the first use in a process loads a library.  Thread safe, but not for signal
 * handlers. */
const struct rs_call_site *rs_call_site_here(void);

/* Returns the site's Python frames, one line "FILE:LINE in FUNCTION" each, innermost first, each
 * ended by '\n'; "" without Python. */
const char *rs_call_site_python(const struct rs_call_site *site);
