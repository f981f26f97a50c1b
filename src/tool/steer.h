/* SPDX-License-Identifier: Apache-2.0 */
/* Hands a command to a served process (shared/commands.h) and waits for its answer. */
#pragma once

#include "base/size.h"
#include "shared/commands.h"
#include "tool/process.h"

#include <stdint.h>

enum steer_answer {
    STEER_DONE,    /* command->result and what follows are the process's */
    STEER_LATE,    /* the process made no call in time; the command is withdrawn */
    STEER_STUCK,   /* the process took the command and has not ended it: it may yet */
    STEER_BUSY,    /* somebody else's command is under way */
    STEER_GONE,    /* the process ended meanwhile */
    STEER_REFUSED, /* it has no file for commands, or not one that this user may write */
};

/* command: kind, device and bytes are read; the result fields are filled in with STEER_DONE.  Waits
 * wait_ns at most for the process to take the command. */
enum steer_answer steer(const struct process *process, struct rs_commands *command,
                        uint64_t wait_ns);

/* Says why the answer is not STEER_DONE.  The exit code. */
int steer_say(const struct process *process, enum steer_answer answer,
              const struct rs_commands *command);

/* What `limit` and `trim` have in common: a process, and then each of the devices that it uses, or
 * the one that --device names. */
struct steer_target {
    struct process process;
    char program[256];
    int devices[64];
    uint64_t total_bytes[64]; /* of these; 0: not known */
    int device_count;
};

/* The words of `limit` and `trim`, apart. */
struct steer_words {
    const char *number; /* of the process */
    const char *value;  /* what stands behind it, or --keep's; NULL: nothing */
    int device;         /* -1: all that the process uses */
    uint64_t wait_ns;
};

/* Takes the command's arguments apart; `value_option` ("--keep") names the value, NULL: it stands
 * behind the process.  False after saying what is wrong. */
bool steer_parse(char **arguments, const char *value_option, struct steer_words *words);

/* Parses a size as RMM_LIMIT has it; `name` is what it is called in the error line.  False after
 * saying what is wrong. */
bool steer_parse_size(const char *name, const char *text, struct rs_size *size);

/* Opens the process of that number and lists its devices; `device` -1: all that it uses.  False
 * after saying why not, with *code the exit code.  process_close is due after true. */
bool steer_open(const char *number, int device, struct steer_target *target, int *code);
