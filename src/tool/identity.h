/* SPDX-License-Identifier: Apache-2.0 */
/* What tells a process from others of its program's name: the script that an interpreter runs, and
 * the user.  Texts are plain (report/plain.h). */
#pragma once

#include "tool/process.h"

#include <stdbool.h>
#include <stddef.h>

enum { IDENTITY_SCRIPT_BYTES = 256, IDENTITY_USER_BYTES = 64 };

struct identity {
    char script[IDENTITY_SCRIPT_BYTES]; /* "train.py", "-m module"; empty: no interpreter's */
    char user[IDENTITY_USER_BYTES];     /* a name, or the number of one without */
};

/* What /proc tells of the process now.  Not thread safe. */
void identity_read(const struct process *process, struct identity *identity);

/* The script alone, of the process of that number; empty too where the process is gone. */
void identity_script_of(int number, char script[IDENTITY_SCRIPT_BYTES]);

/* What an interpreter with this command line (as /proc/PID/cmdline has it) runs; empty where it is
 * none, or runs no file. */
void identity_script(const char *words, size_t bytes, char script[IDENTITY_SCRIPT_BYTES]);
