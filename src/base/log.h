/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for the user: built on the stack, one write(2) each, errno kept, never a lock or malloc.
 *
 * The library is silent unless asked.  What it must say (a bad setting, an output that could not be
 * opened, a call it refused) is one line each, and at most RS_LOG_LINES_MAX lines a process. */
#pragma once

#include "base/check.h"

#include <stdbool.h>

enum { RS_LOG_LINES_MAX = 40, RS_LOG_LINE_BYTES = 1024 };

/* Writes "rmmshim[pid]: <text>\n" to stderr.  Counts against RS_LOG_LINES_MAX.  Thread safe. */
void rs_log(const char *format, ...) RS_PRINTF(1, 2);

/* Writes "<name><text>", once, and not before rs_log_serving is called: for what a look-up shows
 * before it is known whether this process has settings at all.  `text` is static. */
void rs_log_once_serving(const char *text, const char *name);
void rs_log_serving(void);

/* The same for lines the user asked for (RMM_VERBOSE, the report at exit): not counted. */
void rs_log_asked(const char *format, ...) RS_PRINTF(1, 2);

/* True the first time it is called with this flag: for lines that are said once.  Thread safe. */
bool rs_log_once(bool *said);

/* Writes all bytes to a descriptor, over EINTR and short writes.  0 or -errno.  Raises no signal,
 * no cancellation acts in it, and it keeps errno. */
int rs_write_all(int fd, const void *bytes, size_t length_bytes);
