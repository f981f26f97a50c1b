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

/* Writes the return addresses, innermost first, without the first ones that are in `skipped`'s
 * object.  Returns how many: at most `max`, 0 when the system's unwinder has to be asked.  Thread
 * safe; takes no lock but the loader's, as that unwinder does. */
unsigned rs_unwind(struct rs_unwind_start start, bool (*is_skipped)(const void *address),
                   void **frames, unsigned max);
