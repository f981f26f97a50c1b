/* SPDX-License-Identifier: Apache-2.0 */
/* Lines for the user.  Each is built on the stack and written by one write(2); logging takes no
 * lock, does not call malloc, and keeps errno.
 *
 * The library is silent unless asked.  A line that it writes unasked (a bad setting, an output
 * that could not be opened, a call that it refused) counts against RS_LOG_LINES_MAX lines per
 * process; one more line then says that further messages are suppressed. */
#pragma once

#include "base/check.h"

#include <stdbool.h>

enum { RS_LOG_LINES_MAX = 40, RS_LOG_LINE_BYTES = 1024 };

/* Writes "rmmshim[pid]: <text>\n" to stderr.  Counts against RS_LOG_LINES_MAX.  Thread safe. */
void rs_log(const char *format, ...) RS_PRINTF(1, 2);

/* Logs "<name><text>" once per process, but not before rs_log_serving is called: a look-up of a
 * function may find something to report before it is known whether this process has settings at
 * all.  `text` has static storage; `name` is copied, at most 63 bytes of it. */
void rs_log_once_serving(const char *text, const char *name);

/* Called when stacks serve in this process: logs what rs_log_once_serving has kept. */
void rs_log_serving(void);

/* Writes a line as rs_log does, without counting it: for lines that the user asked for
 * (RMM_VERBOSE, the report at exit). */
void rs_log_asked(const char *format, ...) RS_PRINTF(1, 2);

/* Returns true for the first call with this flag, which starts as false: for lines that are
 * written once.  Thread safe. */
bool rs_log_once(bool *said);

/* Writes all bytes to fd; repeats after EINTR and short writes.  Returns 0 or -errno.  Keeps
 * errno, is no cancellation point, and raises no SIGPIPE or SIGXFSZ. */
int rs_write_all(int fd, const void *bytes, size_t length_bytes);
