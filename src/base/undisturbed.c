/* SPDX-License-Identifier: Apache-2.0 */
#include "base/undisturbed.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

void rs_uncancelled_begin(struct rs_uncancelled *uncancelled)
{
    (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &uncancelled->state_before);
}

void rs_uncancelled_end(const struct rs_uncancelled *uncancelled)
{
    (void)pthread_setcancelstate(uncancelled->state_before, NULL);
}

static void fill(sigset_t *signals)
{
    sigemptyset(signals);
    sigaddset(signals, SIGPIPE);
    sigaddset(signals, SIGXFSZ);
    sigaddset(signals, SIGTTOU); /* a background thread that blocks it may write to the terminal */
}

void rs_unsignalled_begin(struct rs_unsignalled *unsignalled)
{
    int kept_errno = errno;
    sigset_t signals;

    rs_uncancelled_begin(&unsignalled->uncancelled);
    fill(&signals);
    sigemptyset(&unsignalled->pending_before);
    (void)pthread_sigmask(SIG_BLOCK, &signals, &unsignalled->blocked_before);
    /* A signal that was not blocked cannot be pending: it was delivered at once. */
    if (sigismember(&unsignalled->blocked_before, SIGPIPE) == 1 ||
        sigismember(&unsignalled->blocked_before, SIGXFSZ) == 1)
        (void)sigpending(&unsignalled->pending_before);
    errno = kept_errno;
}

/* Consumes the signal that a failed write sent to this thread, unless one was pending before:
 * that one is the program's. */
static void take_back(const struct rs_unsignalled *unsignalled, int signal_number)
{
    sigset_t one;

    if (sigismember(&unsignalled->pending_before, signal_number) == 1)
        return;
    sigemptyset(&one);
    sigaddset(&one, signal_number);
    while (sigtimedwait(&one, NULL, &(struct timespec){0, 0}) < 0 && errno == EINTR)
        continue;
}

void rs_unsignalled_end(const struct rs_unsignalled *unsignalled, int error)
{
    int kept_errno = errno;

    if (error == EPIPE)
        take_back(unsignalled, SIGPIPE);
    else if (error == EFBIG)
        take_back(unsignalled, SIGXFSZ);
    (void)pthread_sigmask(SIG_SETMASK, &unsignalled->blocked_before, NULL);
    rs_uncancelled_end(&unsignalled->uncancelled);
    errno = kept_errno;
}
