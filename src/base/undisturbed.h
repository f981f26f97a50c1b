/* SPDX-License-Identifier: Apache-2.0 */
/* What the library does of its own accord must not show in the program's threads: no cancellation
 * acts in it (a thread that ended there would leave our locks locked), and no signal comes of it.
 *
 * Both pairs keep errno and may be nested and used in a signal handler.  They cost some ten
 * nanoseconds and three system calls, so they stand around calls into the kernel. */
#pragma once

#include <signal.h>
#include <stdbool.h>

/* Between the two no cancellation of the calling thread acts; it acts later, where the program has
 * a cancellation point of its own. */
struct rs_uncancelled {
    int state_before;
};

void rs_uncancelled_begin(struct rs_uncancelled *uncancelled);
void rs_uncancelled_end(const struct rs_uncancelled *uncancelled);

/* The same for what writes to a descriptor: also takes back the signal for a reader that is gone
 * (SIGPIPE) or a file that may not grow (SIGXFSZ), and no terminal stops a process in the
 * background (SIGTTOU). */
struct rs_unsignalled {
    struct rs_uncancelled uncancelled;
    sigset_t blocked_before, pending_before;
};

void rs_unsignalled_begin(struct rs_unsignalled *unsignalled);

/* `error` is the errno with which a call in between failed, or 0. */
void rs_unsignalled_end(const struct rs_unsignalled *unsignalled, int error);
