/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a process to the `rmmshim run` that started it. They go to a socket with an abstract
 * name, which all processes of a network namespace can reach, whatever their user, root directory
 * and other namespaces. The name is public, so each request has a token that only RMMSHIM_JOB
 * tells. One request and its answer are one message each on a connection of their own; either may
 * carry a descriptor. A request can still be read when its sender has ended.
 *
 * A process that cannot send its page counts that in a memory file of the `run`, if it can open the
 * file through /proc. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RS_JOB_VARIABLE "RMMSHIM_JOB"   /* "NAME:TOKEN:PID:DESCRIPTOR:INODE:START" */
#define RS_JOB_LAYOUT   "rmmshim job 4" /* the version of the layout of requests and answers */
#define RS_JOB_FILE     "rmmshim-job"   /* the memory file's name */

/* A text in the library's file by which `run` finds the library's version, in the form that what(1)
 * looks for.  `run` only uses a library of its own version, since they share the layout of counters
 * and of a job's limit. */
#define RS_JOB_MARK        RS_JOB_MARK_BEFORE RMMSHIM_VERSION
#define RS_JOB_MARK_BEFORE "@(#)rmmshim "

enum {
    RS_JOB_LAYOUT_BYTES = 16,
    RS_JOB_WORD_BYTES = 33,  /* a name or a token: 128 bits in hexadecimal */
    RS_JOB_ANSWER_MS = 2000, /* how long a process waits for its answer */
};

enum rs_job_wish {
    /* "Hold my page": the request's descriptor is the process's page (shared/published.h). Without
     * a descriptor the process has no page, and the `run` only counts it as missed. */
    RS_JOB_HOLD_PAGE = 1,
    RS_JOB_GIVE_LIMIT, /* "give me the file of a job's limit", which is the answer's descriptor. The
                          number 0 asks for the innermost job with a limit, 1 for the one around it,
                          and so on */
    RS_JOB_PASS_PAGE,  /* "hold this page", from a `run` that runs below this one: the number is the
                          id of the page's process */
};

struct rs_job_request {
    char layout[RS_JOB_LAYOUT_BYTES];
    char token[RS_JOB_WORD_BYTES];
    uint32_t wish, number;
};

/* The answer is a uint32_t. 0: the wish was refused. Otherwise the wish was granted; for
 * RS_JOB_GIVE_LIMIT the answer is then the number of jobs with a limit from the one asked for to
 * the outermost. The memory file RS_JOB_FILE is an _Atomic uint32_t: the number of pages that could
 * not be sent by the socket. */

/* Sends the request to the `run` above, with `fd` (-1: none), and waits for the answer, at most
 * RS_JOB_ANSWER_MS and only while the `run` lives. Stores the descriptor that came back in
 * *received, which may be NULL. Raises no signal and is no cancellation point. Thread safe.
 *
 * Returns 0 when the wish was granted; for RS_JOB_GIVE_LIMIT, the number of jobs with a limit
 * around the one asked for. Errors: -ENOENT when there is no `run` above; -ESTALE when the `run`
 * cannot be reached, or when a process that is not the `run`, or is of neither this user nor root,
 * has its socket's name now; another -errno when the `run` refused or did not answer. */
int rs_run_ask(enum rs_job_wish wish, uint32_t number, int fd, int *received);

/* Does the same for another `run`, given by the text of its RMMSHIM_JOB. */
int rs_run_ask_at(const char *run, enum rs_job_wish wish, uint32_t number, int fd, int *received);

/* Send or receive one message with at most one descriptor (-1: none). They return 0 or -errno:
 * -EPROTO for a message of another length; -ECONNRESET when the other side has closed the
 * connection; -EMFILE when the message came with more than one descriptor, or lost its descriptor
 * because this process may open no more. */
int rs_job_send(int socket, const void *message, size_t bytes, int fd);
int rs_job_receive(int socket, void *message, size_t bytes, int *fd);
