/* SPDX-License-Identifier: Apache-2.0 */
/* Guards around the library's own calls into the kernel, so that the program's threads do not
 * notice them: no cancellation acts inside (a thread that ended there would leave a lock
 * locked), and no signal results from them.
 *
 * Both pairs keep errno, may be nested, and may be used in a signal handler.  The first pair
 * costs some ten nanoseconds; the second makes two to four system calls. */
#pragma once

#include <signal.h>
#include <stdbool.h>

/* Between the two calls no cancellation of the calling thread acts; a pending one acts at the
 * program's next cancellation point. */
struct rs_uncancelled {
    int state_before;
};

void rs_uncancelled_begin(struct rs_uncancelled *uncancelled);
void rs_uncancelled_end(const struct rs_uncancelled *uncancelled);

/* Does as rs_uncancelled, for calls that write to a descriptor.  Also takes back the signal of a
 * write to a pipe without a reader (SIGPIPE) or beyond the file size limit (SIGXFSZ), and keeps
 * a terminal from stopping a process in the background (SIGTTOU). */
struct rs_unsignalled {
    struct rs_uncancelled uncancelled;
    sigset_t blocked_before, pending_before;
};

void rs_unsignalled_begin(struct rs_unsignalled *unsignalled);

/* `error` is the errno of the write that failed in between, or 0. */
void rs_unsignalled_end(const struct rs_unsignalled *unsignalled, int error);
