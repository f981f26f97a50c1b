/* SPDX-License-Identifier: Apache-2.0 */
/* Writing out what logging resources have buffered. */
#pragma once

/* Writes every log's buffer to its file; called at exit.  Does nothing in a child after fork, whose
 * buffers are copies of its parent's.  Thread safe. */
void rs_logging_flush_all(void);
