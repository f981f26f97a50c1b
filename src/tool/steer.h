/* SPDX-License-Identifier: Apache-2.0 */
/* Gives a command to a served process (shared/commands.h) and waits for its answer. */
#pragma once

#include "base/size.h"
#include "shared/commands.h"
#include "tool/process.h"

#include <stdbool.h>
#include <stdint.h>

/* What the commands `limit`, `trim` and `leaks` act on: a process, and each of the devices that it
 * uses, or the one that --device names. */
struct steer_target {
    const char *number; /* the process's number, as the user gave it */
    const char *value;  /* the word after the number, or the value of an option; NULL: none */
    int device;         /* -1: all devices that the process uses */
    uint64_t wait_ns;   /* the longest wait until the process takes a command */

    struct process process;
    char program[RS_PUBLISHED_PROGRAM_BYTES];
    int devices[RS_DEVICES_MAX];
    uint64_t total_bytes[RS_DEVICES_MAX]; /* the memory of each device; 0: not known */
    int device_count;
};

/* The part of the help that these commands share. */
#define STEER_HELP_OPTIONS                                                                         \
    "  --device N      only this device; default: each device that the process uses\n"             \
    "  --wait SECONDS  how long to wait for the process's answer (default 2)\n\n"
#define STEER_HELP_WHEN                                                                            \
    "The process obeys at its next CUDA call that allocates, frees, synchronises or asks how\n"    \
    "much memory is free; if it was started with RMM_CONTROL=thread, between such calls too.\n\n"

/* Parses the command's arguments.  The target's value is the word after the process if value_option
 * is NULL, else the value of that option ("--keep").  If `flag` is not NULL, the option has no
 * value, and sets *flag.  Returns false after saying what is wrong. */
bool steer_parse(char **arguments, const char *value_option, bool *flag,
                 struct steer_target *target);

/* Opens the process and lists its devices.  Returns TOOL_OK, and the caller calls process_close; or
 * another exit code, after saying why it failed. */
int steer_open(struct steer_target *target);

/* Gives a command (kind, device and bytes) to the process.  Returns TOOL_OK when the process has
 * carried it out; the command's result fields are then filled in.  Returns another exit code after
 * saying why it failed; if a signal ended the wait, this process ends by that signal instead.  For
 * RS_COMMAND_LIST `list` is not NULL; if the process has answered, *list becomes the list, which
 * the caller frees, or NULL if the process has written an invalid one. */
int steer(const struct steer_target *target, struct rs_commands *command, char **list);

/* If a signal came while a command was pending, ends this process by that signal.  The caller first
 * prints what the process has answered. */
void steer_end_if_interrupted(void);
