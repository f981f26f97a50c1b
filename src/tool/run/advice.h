/* SPDX-License-Identifier: Apache-2.0 */
/* Advice (tool/advice.h) for the processes of a `run` that are gone. */
#pragma once

/* Keeps what the page of a process that is gone gives reason to advise; of at most 8 processes.
 * It is named by the script that an interpreter runs, where that is not empty. */
void run_advice_look(int process, const char *script, const void *file);

void run_advice_say(void);

/* Forgets what was kept, which was of an earlier program. */
void run_advice_forget(void);
