/* SPDX-License-Identifier: Apache-2.0 */
/* Leak reports (RMM_TRACKING) that processes of a `run` could not write.  Call sites are in the
 * process's own memory, so nobody else can write them; that one is missing is said. */
#pragma once

#include <sys/types.h>

/* Notes by its page that a process that is gone has not written the report it was asked for.
 * It is named by the script that an interpreter runs, where that is not empty. */
void run_leaks_look(int process, const char *script, const void *file);

/* Says which reports are missing, and why; `status` is that of the program, as of waitpid. */
void run_leaks_say(pid_t program, int status);

/* Forgets what was noted, which was of an earlier program. */
void run_leaks_forget(void);
