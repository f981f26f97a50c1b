/* SPDX-License-Identifier: Apache-2.0 */
#include "shared/futex.h"

#include "base/lock.h"

#include <errno.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void rs_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t wait_ns)
{
    struct timespec wait = {(time_t)(wait_ns / 1000000000), (long)(wait_ns % 1000000000)};

    if (syscall(SYS_futex, word, FUTEX_WAIT, seen, &wait, NULL, 0) != 0 && errno == ETIMEDOUT)
        rs_clock_note_slept(wait_ns);
}

void rs_futex_wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}
