/* SPDX-License-Identifier: Apache-2.0 */
/* The return addresses of the calling thread, without the system's unwinder, which needs a
 * microsecond or more for each frame: it reads the compiler's tables anew each time.  Here the rule
 * that they give for a return address is kept. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Where a walk begins: at the caller of a function. */
struct rs_unwind_start {
    uintptr_t return_address, sp, fp; /* the caller's */
};

/* Of the function that it stands in, which must have a frame pointer. */
#define RS_UNWIND_START()                                                                          \
    ((struct rs_unwind_start){(uintptr_t)__builtin_return_address(0),                              \
                              (uintptr_t)__builtin_dwarf_cfa(),                                    \
                              *(uintptr_t *)__builtin_frame_address(0)})

enum rs_unwind_end {
    RS_UNWIND_OUTERMOST, /* these are all frames of the thread */
    RS_UNWIND_HANDLER,   /* of a signal: what it interrupted is left out */
    RS_UNWIND_CUT,       /* there may be more */
    RS_UNWIND_ELSEWHERE, /* the same, and the thread is on a stack that is not its own */
};

/* Code of which the first frames are left out. */
struct rs_unwind_skipped {
    uintptr_t begin, bytes;
};

/* Writes the return addresses, innermost first, without the first ones that are skipped.
 * Returns how many, at most `max`, and at *end why there are no more.  0: it cannot be told who
 * called.  Reads the thread's own stack alone, on another one (a coroutine's) no frame but those
 * that are skipped: there it knows the caller alone.  A word that is no return address ends the
 * walk.  Thread safe; takes no lock but the loader's, as the system's unwinder does. */
unsigned rs_unwind(struct rs_unwind_start start, struct rs_unwind_skipped skipped, void **frames,
                   unsigned max, enum rs_unwind_end *end);
