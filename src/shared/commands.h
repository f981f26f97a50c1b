/* SPDX-License-Identifier: Apache-2.0 */
/* Commands to a process from outside (`rmmshim limit`, `rmmshim trim`): a memory file of the
 * process's, which another process of the same user opens by /proc/PID/fd and writes one command
 * into.  The library looks at one word of the file at each allocation, free and synchronisation
 * that it sees, so that it needs no thread; a process that makes none of these calls takes a
 * command only where it has a thread for it (RMM_CONTROL=thread).
 *
 * A writer first locks the file (flock), so that commands come one at a time.  What a writer puts
 * there is checked: it may be any program of the user's. */
#pragma once

#include "base/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RS_COMMANDS_LAYOUT "rmmshim " RMMSHIM_VERSION " commands 1"
#define RS_COMMANDS_NAME   "rmmshim-commands" /* of the memory file */

enum { RS_COMMANDS_BYTES = 4096, RS_COMMAND_TEXT_BYTES = 256 };

enum rs_command_kind {
    RS_COMMAND_LIMIT = 1, /* sets the limit of a device to `bytes`; 0: no limit */
    RS_COMMAND_TRIM = 2,  /* gives back what nobody uses, all but `bytes` */
};

/* A command's way: its writer asks, the process takes it and then answers.  A writer that waits no
 * longer withdraws what is not taken yet. */
enum rs_command_step {
    RS_COMMAND_NONE,
    RS_COMMAND_ASKED,
    RS_COMMAND_TAKEN,
    RS_COMMAND_ANSWERED,
};

struct rs_commands {
    char layout[32];
    int32_t process;       /* whose file it is: its own number in its PID namespace */
    int32_t has_thread;    /* it takes commands also while it makes no call */
    _Atomic uint32_t step; /* enum rs_command_step; a futex for both sides */
    uint32_t kind;         /* enum rs_command_kind */
    int32_t device;
    int32_t result; /* 0 or -errno, valid when answered */
    uint64_t bytes;
    uint64_t before_bytes, after_bytes; /* LIMIT: the limits; TRIM: what was held */
    uint64_t held_bytes;                /* charged against the limit after the command */
    char text[RS_COMMAND_TEXT_BYTES];   /* what went wrong, in words */

    /* Not 0: the process is to look after the call's own work.  Bits below RS_ATTENTION_ASKED count
     * the exported blocks that are held (ipc/export.h). */
    _Alignas(RS_CACHE_LINE) _Atomic uint64_t attention;
};

#define RS_ATTENTION_ASKED ((uint64_t)1 << 32)

/* The word of this process, in the file or, where there is none, beside it.  Reading it is one load
 * of this pointer and one of the word. */
extern RS_HOT_DATA _Atomic uint64_t *rs_attention;

/* Makes the file.  Without one nothing can be commanded, and all else goes on.  Not thread safe. */
void rs_commands_begin(bool has_thread);

/* In a forked child, which has no copy of the file. */
void rs_commands_forget(void);

/* Takes the command that is asked for.  False when there is none, or another thread has it.
 * rs_commands_answer is due. */
bool rs_commands_take(struct rs_commands *command);

/* Answers with what the command's result fields say. */
void rs_commands_answer(const struct rs_commands *command);

/* Waits until a command is asked for, for a thread of its own. */
void rs_commands_wait(void);
