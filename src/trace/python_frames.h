/* SPDX-License-Identifier: Apache-2.0 */
/* The Python frames of the calling thread, read through the interpreter in the process. */
#pragma once

#include "trace/line.h"

enum { RS_PYTHON_FRAMES_MAX = 8 }; /* the innermost ones */

/* Writes a line "FILE:LINE in FUNCTION" for each frame, innermost first.  Returns how many: 0 when
 * there is no Python 3.9 or newer, it is not initialised, or this thread has no frames; with
 * versions newer than 3.13 also when the thread does not hold Python's lock.  Never waits for the
 * lock, runs no Python code, and keeps errno and a pending exception. */
unsigned rs_python_lines(const struct rs_line *lines[RS_PYTHON_FRAMES_MAX]);
