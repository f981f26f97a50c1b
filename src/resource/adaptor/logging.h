/* SPDX-License-Identifier: Apache-2.0 */
/* Writing out what logging resources have buffered. */
#pragma once

/* Writes every log's buffer to its file and closes it; called at exit.  Does nothing in a child
 * after fork, whose buffers are copies of its parent's.  Thread safe. */
void rs_logging_end(void);

/* Writes a row to the file of marks beside each log (LOG.marks): thread, time, rows of the log so
 * far, text.  0; -ENOENT when no log is open, or what the first file that failed failed with.
 * Thread safe; not for a child after fork. */
int rs_logging_mark(const char *text);
