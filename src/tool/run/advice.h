/* SPDX-License-Identifier: Apache-2.0 */
/* Advice (tool/advice.h) for the processes of a `run` that are gone. */
#pragma once

/* Keeps what the page of a process that is gone gives reason to advise; of at most 8 processes. */
void run_advice_look(int process, const void *file);

void run_advice_say(void);

/* Forgets what was kept, which was of an earlier program. */
void run_advice_forget(void);
