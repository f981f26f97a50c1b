/* SPDX-License-Identifier: Apache-2.0 */
/* The Python frames of the calling thread, asked of the interpreter that is in the process. */
#pragma once

#include <stddef.h>

enum { RS_PYTHON_FRAMES_MAX = 8 }; /* innermost ones */

/* Writes "FILE:LINE in FUNCTION\n" for each, innermost first, only whole lines, not terminated.
 * Returns the bytes written: 0 where there is no Python 3.9 or newer, it is not initialised, or
 * this thread has no frames.  From 3.13 on also where the thread does not hold Python's lock. Never
 * waits for the lock, runs no Python code, leaves a pending exception and errno as they were. */
size_t rs_python_frames(char *text, size_t text_bytes);
