/* SPDX-License-Identifier: Apache-2.0 */
/* The Python frames of the calling thread, read through the interpreter in the process. */
#pragma once

#include <stddef.h>

enum { RS_PYTHON_FRAMES_MAX = 8 }; /* the innermost ones */

/* Writes "FILE:LINE in FUNCTION\n" for each frame, innermost first, whole lines only, without a
 * terminating zero.  Returns the bytes written: 0 when there is no Python 3.9 or newer, it is
 * not initialised, or this thread has no frames; with 3.13 and newer also when the thread does
 * not hold Python's lock.  Never waits for the lock, runs no Python code, and keeps errno and a
 * pending exception. */
size_t rs_python_frames(char *text, size_t text_bytes);
