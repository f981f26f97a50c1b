/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim limit: changes the limit of a process that runs. */
#include "base/check.h"
#include "tool/steer.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>

/* "none" or "6.00 GiB". */
static const char *limit_text(uint64_t bytes, char text[RS_SIZE_TEXT_BYTES])
{
    return bytes ? rs_size_format_short(bytes, text) : "none";
}

static void print_answer(const struct steer_target *target, const struct rs_commands *command)
{
    char before[RS_SIZE_TEXT_BYTES], after[RS_SIZE_TEXT_BYTES], held[RS_SIZE_TEXT_BYTES];
    char above[RS_SIZE_TEXT_BYTES];

    printf("%s [%d] device %d: limit %s (was %s); holds %s", target->program,
           target->process.number, (int)command->device, limit_text(command->after_bytes, after),
           limit_text(command->before_bytes, before),
           rs_size_format_short(command->held_bytes, held));
    if (command->after_bytes && command->held_bytes > command->after_bytes)
        printf(", %s above it: memory in use stays, and further requests are refused",
               rs_size_format_short(command->held_bytes - command->after_bytes, above));
    printf("%s%s\n", command->text[0] ? "; " : "", command->text);
}

static bool resolve(const struct steer_target *target, int index, const struct rs_size *size,
                    uint64_t *bytes)
{
    uint64_t total_bytes = target->total_bytes[index];

    if (size->kind != RS_SIZE_BYTES && !total_bytes) {
        tool_say("device %d: a percentage cannot be used yet, as it is not known how much memory "
                 "the device has",
                 target->devices[index]);
        return false;
    }
    /* A command of 0 bytes takes the limit away: a share that rounds down to 0 is the smallest
     * limit, as in RMM_LIMIT. */
    *bytes = rs_max(rs_size_resolve(*size, total_bytes, total_bytes), 1);
    return true;
}

static int set_limit(const struct steer_target *target, int index, const struct rs_size *size,
                     uint64_t wait_ns)
{
    struct rs_commands command = {.kind = RS_COMMAND_LIMIT, .device = target->devices[index]};
    int code;

    if (size && !resolve(target, index, size, &command.bytes))
        return TOOL_FINDING;
    code = steer(target, &command, wait_ns);
    if (code == TOOL_OK)
        print_answer(target, &command);
    steer_end_if_interrupted();
    return code;
}

static int run(char **arguments)
{
    struct steer_target target;
    struct steer_words words;
    struct rs_size size;
    bool has_limit;
    int code = TOOL_OK;

    if (!steer_parse(arguments, NULL, NULL, &words))
        return TOOL_USAGE;
    if (!words.value) {
        tool_say("the limit is missing: a size as in 6GiB or 50%%, or none");
        return TOOL_USAGE;
    }
    has_limit = strcmp(words.value, "none") != 0;
    if (has_limit && !steer_parse_size("limit", words.value, &size))
        return TOOL_USAGE;
    if (!steer_open(words.number, words.device, &target, &code))
        return code;
    for (int i = 0; i < target.device_count && code == TOOL_OK; i++)
        code = set_limit(&target, i, has_limit ? &size : NULL, words.wait_ns);
    process_close(&target.process);
    return code;
}

static void help(void)
{
    puts("Sets the most that a process takes from the driver on a device from now on, whatever\n"
         "RMM_LIMIT said; `none` takes the limit away.  Unused memory above the limit goes back "
         "to\n"
         "the driver; memory in use stays, and further requests are refused.\n\n"
         "  --device N      one device; without it each that the process uses\n"
         "  --wait SECONDS  how long to wait for the process (2)\n\n"
         "The process takes the command at its next call that allocates, frees, synchronises or "
         "asks\n"
         "for free memory; with RMM_CONTROL=thread also between such calls.\n\n"
         "exit codes: 0 the limit is set; 1 it cannot be set; 2 wrong usage; 3 the process did "
         "not\n"
         "answer in time\n\n"
         "example: rmmshim limit 4711 6GiB");
}

const struct tool_command tool_limit = {
    .name = "limit",
    .arguments = "PID SIZE|none [--device N] [--wait SECONDS]",
    .summary = "Changes the limit of a running process",
    .run = run,
    .help = help,
};
