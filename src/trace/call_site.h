/* SPDX-License-Identifier: Apache-2.0 */
/* Call sites: who asked for a block.  A site is a stack of return addresses and, in a process that
 * runs Python, the Python frames above them.  Equal sites are one record, which lives as long as
 * the process, so memory stays bounded however many blocks there are. */
#pragma once

#include <stdint.h>

enum {
    RS_CALL_SITE_FRAMES_MAX = 32,        /* innermost ones */
    RS_CALL_SITE_PYTHON_BYTES = 1024,    /* of text */
    RS_CALL_SITE_TABLE_BYTES = 16 << 20, /* of all sites; reserved, taken page by page */
};

struct rs_call_site {
    const struct rs_call_site *next; /* with the same hash */
    uint64_t hash;
    unsigned frame_count;
    unsigned python_bytes;
    void *frames[]; /* return addresses, innermost first, without our own; then the Python text */
};

/* The calling thread's, or NULL: no unwinder (libgcc_s.so.1 is not there), out of host memory, or
 * the table is full.  Holds no lock while it unwinds or asks Python: the first use in a process
 * loads a library.  Thread safe, not for signal handlers. */
const struct rs_call_site *rs_call_site_here(void);

/* "FILE:LINE in FUNCTION" a line, innermost first, each ended by '\n'; "" without Python. */
const char *rs_call_site_python(const struct rs_call_site *site);
