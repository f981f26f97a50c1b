/* SPDX-License-Identifier: Apache-2.0 */
/* Calls for all logs of `logging` resources: their end, and marks beside them. */
#pragma once

/* Writes every log's buffer to its file and closes it; called at exit.  Does nothing in a child
 * after fork, whose buffers are copies of its parent's.  Thread safe. */
void rs_logging_end(void);

/* Writes a row to the file of marks beside each log (LOG.marks): thread, time, number of log rows
 * so far, text.  Returns 0, -ENOENT when no log is open, or the first error of a file as -errno.
 * Thread safe; must not be called in a child after fork. */
int rs_logging_mark(const char *text);
