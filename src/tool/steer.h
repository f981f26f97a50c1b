/* SPDX-License-Identifier: Apache-2.0 */
/* Hands a command to a served process (shared/commands.h) and waits for its answer. */
#pragma once

#include "base/size.h"
#include "shared/commands.h"
#include "tool/process.h"

#include <stdbool.h>
#include <stdint.h>

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
 * behind the process.  `is_json`, NULL: it has no --json.  False after saying what is wrong. */
bool steer_parse(char **arguments, const char *value_option, bool *is_json,
                 struct steer_words *words);

/* Parses a size as RMM_LIMIT has it; `name` is what it is called in the error line.  False after
 * saying what is wrong. */
bool steer_parse_size(const char *name, const char *text, struct rs_size *size);

/* Hands a command (kind, device and bytes) to the process, and waits wait_ns at most for it to take
 * the command.  The exit code: TOOL_OK when the process has carried it out, with the command's
 * result fields filled in; another one after saying why not. */
int steer(const struct steer_target *target, struct rs_commands *command, uint64_t wait_ns);

/* As steer, for RS_COMMAND_LIST: *list is the list, or NULL; free() is due. */
int steer_list(const struct steer_target *target, struct rs_commands *command, uint64_t wait_ns,
               char **list);

/* Ends this process by the signal that came while a command was asked, if one came.  The caller
 * prints what the process has answered before it calls this. */
void steer_end_if_interrupted(void);

/* Opens the process of that number and lists its devices; `device` -1: all that it uses.  False
 * after saying why not, with *code the exit code.  process_close is due after true. */
bool steer_open(const char *number, int device, struct steer_target *target, int *code);
