/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for all logs that `logging` resources write: they end the logs, and write marks. */
#pragma once

/* Writes the buffered rows of every log to its file, and closes the file.  Called at exit.  Leaves
 * out a log whose lock is not free in time, and in a forked child the logs of the parent.  Thread
 * safe. */
void rs_logging_end(void);

/* Writes a mark to the file LOG.marks beside each log: a row with thread, time, number of log rows
 * so far, and the text.  The text is cut to 200 bytes, and its control characters become blanks.
 * Returns 0, -ENOENT when no log is open, or the first error of a file as -errno (-ENOTSUP for a
 * log that is a device file).  Thread safe; must not be called in a forked child. */
int rs_logging_mark(const char *text);
