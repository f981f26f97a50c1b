/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim trim: has a process that runs give back what it holds and does not use. */
#include "tool/steer.h"
#include "tool/tool.h"

#include <stdio.h>

static void print_answer(const struct steer_target *target, const struct rs_commands *command)
{
    char gave[RS_SIZE_TEXT_BYTES], holds[RS_SIZE_TEXT_BYTES];
    uint64_t before = command->before_bytes, after = command->after_bytes;

    printf("%s [%d] device %d: gave back %s, holds %s%s%s\n", target->program,
           target->process.number, (int)command->device,
           rs_size_format_short(before > after ? before - after : 0, gave),
           rs_size_format_short(after, holds), command->text[0] ? "; " : "", command->text);
}

static int trim(const struct steer_target *target, int device, uint64_t keep_bytes,
                uint64_t wait_ns)
{
    struct rs_commands command = {.kind = RS_COMMAND_TRIM, .device = device, .bytes = keep_bytes};
    int code = steer(target, &command, wait_ns);

    if (code == TOOL_OK)
        print_answer(target, &command);
    steer_end_if_interrupted();
    return code;
}

static int run(char **arguments)
{
    struct steer_target target;
    struct steer_words words;
    struct rs_size keep = {.number = 0};
    int code = TOOL_OK;

    if (!steer_parse(arguments, "--keep", NULL, &words) ||
        (words.value && !steer_parse_size("--keep", words.value, &keep)))
        return TOOL_USAGE;
    if (keep.kind != RS_SIZE_BYTES) {
        tool_say("--keep %s: expected a size in bytes, not a percentage", words.value);
        return TOOL_USAGE;
    }
    if (!steer_open(words.number, words.device, &target, &code))
        return code;
    for (int i = 0; i < target.device_count && code == TOOL_OK; i++)
        code = trim(&target, target.devices[i], keep.number, words.wait_ns);
    process_close(&target.process);
    return code;
}

static void help(void)
{
    puts("Makes the process return unused memory to the driver.\n\n"
         "  --keep SIZE     how much of it the process keeps\n"
         "  --device N      one device; without it each that the process uses\n"
         "  --wait SECONDS  how long to wait for the process (2)\n\n"
         "The process takes the command at its next call that allocates, frees, synchronises or "
         "asks\n"
         "for free memory; with RMM_CONTROL=thread also between such calls.\n\n"
         "exit codes: 0 done; 1 it cannot be done; 2 wrong usage; 3 the process did not answer in "
         "time\n\n"
         "example: rmmshim trim 4711 --keep 512MiB");
}

const struct tool_command tool_trim = {
    .name = "trim",
    .arguments = "PID [--keep SIZE] [--device N] [--wait SECONDS]",
    .summary = "Makes a running process give back memory that it does not use",
    .run = run,
    .help = help,
};
