/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim resume: brings the GPU memory of a paused process back. */
#include "tool/checkpoint.h"
#include "tool/tool.h"

#include <stdio.h>

static int run(char **arguments)
{
    int number = checkpoint_parse(arguments);

    return number == 0 ? TOOL_USAGE : checkpoint_resume(number);
}

static void help(void)
{
    puts("Brings the GPU memory of the process back, to the same addresses, and lets its calls of "
         "CUDA\n"
         "go on.  Where the device lacks the memory meanwhile, the process stays paused.\n\n"
         "exit codes: 0 the process runs on; 1 it cannot; 2 wrong usage\n\n"
         "example: rmmshim resume 4711");
}

const struct tool_command tool_resume = {
    .name = "resume",
    .arguments = "PID",
    .summary = "Brings a paused process's GPU memory back, and lets it run on",
    .run = run,
    .help = help,
};
