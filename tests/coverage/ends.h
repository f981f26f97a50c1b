/* SPDX-License-Identifier: Apache-2.0 */
/* gcov writes its counters at exit and before an exec.  With this header before every source
 * (tests/coverage/run) a process that ends by _exit, abort or a signal of its own writes them too.
 */
#pragma once

#ifndef __ASSEMBLER__
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

void __gcov_dump(void);
void __gcov_reset(void); /* else what is counted after a dump is never written */

#define RS_COVERED(call) (__gcov_dump(), __gcov_reset(), (call))
#define _exit(status)    RS_COVERED((_exit)(status))
#define abort()          RS_COVERED((abort)())
#define raise(number)    RS_COVERED((raise)(number))
#define execvpe(file, words, environment)                                                          \
    RS_COVERED((execvpe)(file, words, environment)) /* gcov knows the others */
#endif
