/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for all logs of `logging` resources: their end, and marks beside them. */
#pragma once

/* Writes the buffered rows of every log to its file, and closes the file; called at exit.  A log
 * whose lock is not free in time is left out.  In a child after fork the parent's logs are left
 * alone.  Thread safe. */
void rs_logging_end(void);

/* Writes a row to the file of marks beside each log (LOG.marks): thread, time, number of log rows
 * so far, text.  The text is cut to 200 bytes, and its control characters become blanks.  Returns
 * 0, -ENOENT when no log is open, or the first error of a file as -errno (-ENOTSUP for a log that
 * is a device file).  Thread safe; must not be called in a child after fork. */
int rs_logging_mark(const char *text);
