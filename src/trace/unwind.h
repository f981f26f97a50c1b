/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the return addresses of the calling thread.  The system's unwinder needs a microsecond or
 * more for each frame, since it reads the compiler's tables each time; here the rule for each
 * return address is cached. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Where a walk begins: at the caller of a function. */
struct rs_unwind_start {
    uintptr_t return_address, sp, fp; /* the return address into the caller, and the caller's stack
                                         pointer and frame pointer */
};

/* The start for the function in which it is used, which must have a frame pointer. */
#define RS_UNWIND_START()                                                                          \
    ((struct rs_unwind_start){(uintptr_t)__builtin_return_address(0),                              \
                              (uintptr_t)__builtin_dwarf_cfa(),                                    \
                              *(uintptr_t *)__builtin_frame_address(0)})

enum rs_unwind_end {
    RS_UNWIND_OUTERMOST, /* the walk has reached the thread's outermost frame */
    RS_UNWIND_HANDLER, /* the walk reached a signal handler; the frames that it interrupted are left
                          out */
    RS_UNWIND_CUT,     /* there may be more frames */
    RS_UNWIND_ELSEWHERE, /* there may be more frames, but the thread is on a stack that is not its
                            own */
};

/* A range of code: frames at the beginning of a walk that lie in it are left out. */
struct rs_unwind_skipped {
    uintptr_t begin, bytes;
};

/* Stores the return addresses, innermost first, without those at the beginning that lie in
 * `skipped`. Returns their number, at most `max` (not 0); *end says why there are no more. Returns
 * 0 if the first caller outside `skipped` cannot be found. If the thread is on a stack that is not
 * its own (a coroutine's), only that first caller is stored. A word that is no return address ends
 * the walk. Thread safe. Takes no lock but one of the loader. The first call in a process loads
 * libgcc_s.so.1. */
unsigned rs_unwind(struct rs_unwind_start start, struct rs_unwind_skipped skipped, void **frames,
                   unsigned max, enum rs_unwind_end *end);
