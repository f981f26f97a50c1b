/* SPDX-License-Identifier: Apache-2.0 */
/* Commands to a running process (`rmmshim limit`, `trim` and `leaks`).  The process has a memory
 * file; another process of the same user opens it through /proc/PID/fd and writes one command into
 * it. The library reads one word of the file at each allocation, free, synchronisation and query of
 * the free memory that it hooks, so it needs no thread.  A process that makes none of these calls
 * takes a command only if it has a thread for commands (RMM_CONTROL=thread).
 *
 * A writer first locks the file (flock), so that there is one command at a time.  Every field that
 * a writer sets is checked: the writer may be any program of the user. */
#pragma once

#include "base/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define RS_COMMANDS_LAYOUT "rmmshim " RMMSHIM_VERSION " commands 1"
#define RS_COMMANDS_NAME   "rmmshim-commands" /* name of the memory file */

enum { RS_COMMANDS_BYTES = 4096, RS_COMMAND_TEXT_BYTES = 256 };

enum rs_command_kind {
    RS_COMMAND_LIMIT = 1, /* sets the limit of a device to `bytes`; 0: no limit */
    RS_COMMAND_TRIM = 2,  /* gives unused memory back, except `bytes` of it */
    RS_COMMAND_LIST = 3,  /* lists the live blocks of a device, as report/report.h says */
};

/* The state of the command.  A writer that gives up waiting withdraws a command that is not taken
 * yet. */
enum rs_command_step {
    RS_COMMAND_NONE,     /* there is no command */
    RS_COMMAND_ASKED,    /* a writer has written one */
    RS_COMMAND_TAKEN,    /* a thread of the process executes it */
    RS_COMMAND_ANSWERED, /* the result fields are valid */
};

struct rs_commands {
    char layout[32];
    int32_t process;       /* the id of the file's process in its own PID namespace */
    int32_t has_thread;    /* not 0: the process also takes commands between calls */
    _Atomic uint32_t step; /* enum rs_command_step; a futex for both sides */
    uint32_t kind;         /* enum rs_command_kind */
    int32_t device;
    int32_t result; /* 0 or -errno, valid when answered */
    uint64_t bytes;
    uint64_t before_bytes, after_bytes; /* LIMIT: the limits; TRIM: the held bytes; LIST: the offset
                                           of the list in the published file, and its length */
    uint64_t held_bytes;                /* the bytes charged against the limit after the command */
    char text[RS_COMMAND_TEXT_BYTES];   /* the reason for a failure; else a remark, or empty */

    /* The word of attention. If it is not 0, a hook looks for further work. Bit RS_ATTENTION_ASKED:
     * there is a command. Bit RS_ATTENTION_JOB: a hook must call rs_job_look (charge/charge.h). The
     * 32 bits below these two are the number of exported blocks that are held (ipc/export.h). */
    _Alignas(RS_CACHE_LINE) _Atomic uint64_t attention;
};

#define RS_ATTENTION_ASKED ((uint64_t)1 << 32)
#define RS_ATTENTION_JOB   ((uint64_t)1 << 33)

/* Points to the word of attention of this process: in the file, or a static variable when there is
 * no file. Reading it takes two loads, of this pointer and of the word. */
extern RS_HOT_DATA _Atomic uint64_t *rs_attention;

/* Makes the file.  If that fails the process takes no commands and is otherwise unaffected.  Not
 * thread safe. */
void rs_commands_begin(bool has_thread);

/* Closes the file: from now on the process takes no commands.  Called in a forked child, which has
 * no copy of the file's memory, and in a process that stacks will not serve after all. */
void rs_commands_forget(void);

/* Copies the command to *command and marks it as taken; rs_commands_answer must follow.  Returns
 * false when there is none, or another thread has taken it.  Thread safe. */
bool rs_commands_take(struct rs_commands *command);

/* Copies the result fields of *command to the file and wakes the writer. */
void rs_commands_answer(const struct rs_commands *command);

/* Waits at most 1 s for a command or for RS_ATTENTION_JOB. Only the thread for commands
 * (RMM_CONTROL=thread) calls this. */
void rs_commands_wait(void);

/* Sets *fd and *inode to the descriptor and the inode of this process's file, by which another
 * process of the same user finds it. Returns false when there is no file. */
bool rs_commands_where(int *fd, uint64_t *inode);

/* Raises RS_ATTENTION_JOB in the file that process `process` has under descriptor `fd`, and wakes
 * its thread for commands. Does nothing when the descriptor stands for another file by now. */
void rs_commands_raise(int process, int fd, uint64_t inode);
