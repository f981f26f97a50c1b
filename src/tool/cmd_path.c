/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim path: prints where the library is, for whoever sets LD_PRELOAD without `run`. */
#include "tool/program.h"
#include "tool/tool.h"

#include <stdio.h>

static int run(char **arguments)
{
    char path[PATH_MAX];

    if (*arguments) {
        tool_say("%s: path takes no argument", *arguments);
        return TOOL_USAGE;
    }
    if (!library_find(path))
        return TOOL_FINDING;
    puts(path);
    return TOOL_OK;
}

const struct tool_command tool_path = {
    .name = "path",
    .arguments = "",
    .summary = "Prints the path of the library, for LD_PRELOAD",
    .run = run,
    .help = "Prints the path of the library that `rmmshim run` preloads: RMMSHIM_LIBRARY where "
            "that is\n"
            "set, else librmmshim.so beside this command.\n\n"
            "exit codes: 0 printed; 1 there is no library; 2 wrong usage\n\n"
            "example: LD_PRELOAD=$(rmmshim path) RMM_POOL_SIZE=4GiB ./app",
};
