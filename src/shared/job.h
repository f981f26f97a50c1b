/* SPDX-License-Identifier: Apache-2.0 */
/* How a process reaches the `rmmshim run` above it: by a socket with an abstract name, which all
 * processes of a network namespace reach, whatever their user, root directory, and other
 * namespaces.  The name is public, so each request begins with a token that only RMMSHIM_JOB tells.
 * One request and its answer are one message each on a connection of their own; either may carry a
 * descriptor.  What was sent waits in the socket, also when its sender is gone.
 *
 * Who cannot reach the socket says so in a memory file of the `run`'s, if /proc leads there. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RS_JOB_VARIABLE "RMMSHIM_JOB"   /* "NAME:TOKEN:PID:DESCRIPTOR:INODE:START" */
#define RS_JOB_LAYOUT   "rmmshim job 4" /* of requests and answers */
#define RS_JOB_FILE     "rmmshim-job"   /* the memory file's name */

/* Stands in the library's file, as what(1) looks for it: `run` takes a library of its own version
 * only, since they share the layout of counters and of a job's limit. */
#define RS_JOB_MARK        RS_JOB_MARK_BEFORE RMMSHIM_VERSION
#define RS_JOB_MARK_BEFORE "@(#)rmmshim "

enum {
    RS_JOB_LAYOUT_BYTES = 16,
    RS_JOB_WORD_BYTES = 33,  /* a name or a token: 128 bits in hexadecimal */
    RS_JOB_ANSWER_MS = 2000, /* as long as a process waits for its answer */
};

enum rs_job_wish {
    RS_JOB_HOLD_PAGE = 1, /* the descriptor is the process's page (shared/published.h); without one
                             the process has none, and is not counted */
    RS_JOB_GIVE_LIMIT,    /* the answer's descriptor is to be the file of a job's limit: 0 is the
                             number of the innermost one with a limit, 1 of the one around it */
    RS_JOB_PASS_PAGE,     /* as RS_JOB_HOLD_PAGE, from a `run` below: the number is the process */
};

struct rs_job_request {
    char layout[RS_JOB_LAYOUT_BYTES];
    char token[RS_JOB_WORD_BYTES];
    uint32_t wish, number;
};

/* The answer is a uint32_t: not 0 where the wish was granted; of a limit, how many there are from
 * this one on.  The memory file is an _Atomic uint32_t: the pages that did not come by the socket.
 */

/* Sends the request to the `run` above and waits for the answer, RS_JOB_ANSWER_MS at most and only
 * while it lives.  `fd` goes with it (-1: none); the descriptor that came back is *received, if
 * that is wanted.  Returns 0 when the wish was granted (for a limit: how many more there are),
 * -ENOENT without a `run` above, -ESTALE when it cannot be reached, or another process than that
 * `run`, of this user or of root, has its name by now, another -errno when it did not answer or
 * refused.  Raises no signal and is no cancellation point.  Thread safe. */
int rs_run_ask(enum rs_job_wish wish, uint32_t number, int fd, int *received);

/* The same of another `run`, by the text of its RMMSHIM_JOB. */
int rs_run_ask_at(const char *run, enum rs_job_wish wish, uint32_t number, int fd, int *received);

/* One message with at most one descriptor, for both sides.  0 or -errno; a message of another
 * length is -EPROTO. */
int rs_job_send(int socket, const void *message, size_t bytes, int fd);
int rs_job_receive(int socket, void *message, size_t bytes, int *fd);
