/* SPDX-License-Identifier: Apache-2.0 */
/* The Python frames of the calling thread. */
#pragma once

#include "trace/line.h"
#include "trace/unwind.h"

enum { RS_PYTHON_FRAMES_MAX = 8 }; /* the innermost ones */

/* Writes a line "FILE:LINE in FUNCTION" for each frame, innermost first.  Returns how many: 0 where
 * there is no CPython 3.8 to 3.14 (a free-threaded build is none of these), it is not initialised,
 * or this thread has no frames; and where it is not sure which ones are its own: in a signal
 * handler that may have interrupted Python, and beside subinterpreters in a thread whose one state
 * does not hold Python's lock.  `end` is that of a walk of the thread's stack.  Never waits for
 * that lock, runs no Python code, makes no object, and keeps errno. */
unsigned rs_python_lines(enum rs_unwind_end end, const struct rs_line *lines[RS_PYTHON_FRAMES_MAX]);

/* An address in the interpreter's object; NULL before it was found. */
const void *rs_python_address(void);
