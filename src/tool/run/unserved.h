/* SPDX-License-Identifier: Apache-2.0 */
/* Looks through /proc for processes of a `run` that use CUDA and have no page.  It looks at most
 * once a second after the first seconds, so one that lives shortly is not seen. */
#pragma once

#include "tool/process.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { UNSERVED_PROGRAM_BYTES = 32 };

enum unserved_reason {
    UNSERVED_STATIC,     /* no dynamic linker is mapped */
    UNSERVED_NO_PRELOAD, /* the library is not mapped */
    UNSERVED_NO_CALL,    /* the library is mapped, and no allocation has come to it */
    UNSERVED_BEHIND,     /* the same, as LD_PRELOAD names the driver before it */
    UNSERVED_NOT_HELD,   /* it has a page of its own, which did not come here */
};

struct unserved {
    int number;
    enum unserved_reason reason;
    unsigned times; /* that it was seen */
    char program[UNSERVED_PROGRAM_BYTES];
    char script[IDENTITY_SCRIPT_BYTES]; /* that an interpreter runs; empty: none */
};

/* Forgets the processes seen, which were of an earlier program. */
void unserved_begin(void);

/* Looks when it is time, and returns the nanoseconds until the next time.  `is_held` is true for
 * the numbers of processes and the inodes of pages that are held.  One thread at a time, as all
 * functions here. */
uint64_t unserved_look(bool (*is_held)(int number, uint64_t page_inode));

/* The process has a page now: that no allocation came to the library is true no longer. */
void unserved_forget(int number);

/* The processes seen, or NULL without memory.  free() is due. */
struct unserved *unserved_take(size_t *count);

const char *unserved_reason_text(enum unserved_reason reason);
