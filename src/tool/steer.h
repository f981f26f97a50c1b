/* SPDX-License-Identifier: Apache-2.0 */
/* Hands a command to a served process (shared/commands.h) and waits for its answer. */
#pragma once

#include "base/size.h"
#include "shared/commands.h"
#include "tool/process.h"

#include <stdbool.h>
#include <stdint.h>

/* What `limit`, `trim` and `leaks` have in common: a process, and then each of the devices that it
 * uses, or the one that --device names. */
struct steer_target {
    const char *number; /* of the process, as it was given */
    const char *value;  /* what stands behind it, or the value of an option; NULL: nothing */
    int device;         /* -1: all that the process uses */
    uint64_t wait_ns;   /* at most, for it to take a command */

    struct process process;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    int devices[RS_DEVICES_MAX];
    uint64_t total_bytes[RS_DEVICES_MAX]; /* of these; 0: not known */
    int device_count;
};

/* What their helps have in common. */
#define STEER_HELP_OPTIONS                                                                         \
    "  --device N      only this device; default: each device that the process uses\n"             \
    "  --wait SECONDS  how long to wait for the process's answer (default 2)\n\n"
#define STEER_HELP_WHEN                                                                            \
    "The process takes the command at its next call that allocates, frees, synchronises or "       \
    "asks\nfor free memory; with RMM_CONTROL=thread also between such calls.\n\n"

/* Takes the command's arguments apart.  `value_option` ("--keep") has the value, or is a switch
 * where there is a `flag`; NULL: the value stands behind the process.  False after saying what is
 * wrong. */
bool steer_parse(char **arguments, const char *value_option, bool *flag,
                 struct steer_target *target);

/* Opens the process and lists its devices.  TOOL_OK: process_close is due; or an exit code, after
 * saying why not. */
int steer_open(struct steer_target *target);

/* Hands a command (kind, device and bytes) to the process.  The exit code: TOOL_OK when the process
 * has carried it out, with the command's result fields filled in; another one after saying why not.
 * Of RS_COMMAND_LIST *list is then the list, or NULL; free() is due. */
int steer(const struct steer_target *target, struct rs_commands *command, char **list);

/* Ends this process by the signal that came while a command was asked, if one came.  The caller
 * prints what the process has answered before it calls this. */
void steer_end_if_interrupted(void);
