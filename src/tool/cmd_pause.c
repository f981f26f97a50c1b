/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim pause: moves the GPU memory of a process that runs to the host. */
#include "tool/checkpoint.h"
#include "tool/tool.h"

#include <stdio.h>

static int run(char **arguments)
{
    int number = checkpoint_parse(arguments);

    return number == 0 ? TOOL_USAGE : checkpoint_pause(number);
}

static void help(void)
{
    puts(
        "Waits at most 10 s for the process's work on the GPU to end, blocks its calls of CUDA, "
        "and\n"
        "moves its GPU memory to the host, so that other processes have that memory.  The process\n"
        "itself runs on until it calls CUDA.\n\n"
        "It need not be served by rmmshim, but must be of the same user; the driver must be one "
        "for\n"
        "CUDA 12.8 or newer.  The host needs as much free memory as the process has on the GPU.\n\n"
        "exit codes: 0 the process is paused; 1 it cannot be; 2 wrong usage; 3 its work did not\n"
        "end in time\n\n"
        "example: rmmshim pause 4711");
}

const struct tool_command tool_pause = {
    .name = "pause",
    .arguments = "PID",
    .summary = "Moves a process's GPU memory to the host until it is resumed",
    .run = run,
    .help = help,
};
