/* SPDX-License-Identifier: Apache-2.0 */
/* gcov writes its counters at exit and before an exec.  With this header before every source
 * (tests/coverage/run) a process that ends by _exit, abort or a signal of its own writes them too.
 * What writes them is a part of librmmshim.so: its calls must not fail in place of the library's
 * (tests/failures/failing.c), so that the failures end before.
 */
#pragma once

#ifndef __ASSEMBLER__
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void); /* else what is counted after a dump is never written */
void failing_pause(int pause);
#pragma weak failing_pause

/* Not inline, or its branch would count as one of the call's line. */
__attribute__((noinline, unused)) static void rs_end_failures(void)
{
    if (failing_pause)
        failing_pause(1);
}

/* At exit: 100 is the priority of gcov's own, which is later.  A program ends before the library,
 * whose end is played with the failures. */
__attribute__((destructor(101), unused)) static void rs_end_failures_at_exit(void)
{
    if (!__builtin_strncmp(__BASE_FILE__, "../src/", 7))
        rs_end_failures();
}

static inline void rs_write_coverage(void)
{
    rs_end_failures();
    __gcov_dump();
    __gcov_reset();
}

/* In place of the C library's, so that a preloaded librmmshim.so writes too when somebody else's
 * code ends the process, as Python's os._exit does. */
__attribute__((weak, visibility("default"))) void _exit(int status)
{
    rs_write_coverage();
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

#define RS_COVERED(call) (rs_write_coverage(), (call))
#define abort()          RS_COVERED((abort)())
#define raise(number)    RS_COVERED((raise)(number))
/* gcov knows no execvpe.  It writes before the others by itself, but does not end the failures. */
#define execvpe(file, words, environment) RS_COVERED((execvpe)(file, words, environment))
#define execvp(file, words)               RS_COVERED((execvp)(file, words))
#define execlp(...)                       RS_COVERED((execlp)(__VA_ARGS__))
#define execl(...)                        RS_COVERED((execl)(__VA_ARGS__))
#endif
