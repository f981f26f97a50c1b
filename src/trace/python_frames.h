/* SPDX-License-Identifier: Apache-2.0 */
/* The Python frames of the calling thread. */
#pragma once

#include "trace/line.h"
#include "trace/unwind.h"

enum { RS_PYTHON_FRAMES_MAX = 8 }; /* the most frames that are read, the innermost ones */

/* Stores a line "FILE:LINE in FUNCTION" for each frame, innermost first, and returns their number.
 * Returns 0 if the process has no initialised CPython 3.8 to 3.14 (free-threaded builds are not
 * supported), if this thread has no frames, or if the frames are not as expected. Also returns 0
 * where it is uncertain which frames are this thread's: in a signal handler that may have
 * interrupted Python, and, beside subinterpreters, in a thread that does not hold the GIL. A line
 * that cannot be stored ends the list. `end` is the result of a walk of the thread's stack
 * (rs_unwind). Never waits for the GIL, runs no Python code, and keeps errno. Thread safe. */
unsigned rs_python_lines(enum rs_unwind_end end, const struct rs_line *lines[RS_PYTHON_FRAMES_MAX]);

/* Returns an address in the program or library that contains the Python interpreter; NULL before
 * the interpreter was found. */
const void *rs_python_address(void);
