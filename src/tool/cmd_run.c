/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim run: starts a program under the library, stays as its parent (tool/run/parent.c), and
 * reports at the end what happened (tool/run/end.c).  With --exec it becomes the program instead.
 * Settings are checked by the library's own parser before anything starts. */
#include "base/check.h"
#include "config/config.h"
#include "shared/job.h"
#include "tool/profile.h"
#include "tool/program.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool has_nvtx_phases;

/* Called if no setting asks the library for anything.  Options that ask how much memory was used
 * need served memory, so this lets the resource `cuda` serve it, which calls the driver each time,
 * as RMM's default does.  Returns false if there is no such option. */
static bool observe(const struct run_options *options)
{
    if (!options->fails_on_leak && !options->has_fail_over && !options->json)
        return false;
    return setenv(rs_variables[RS_VARIABLE_RESOURCE].option.name, "cuda", 1) == 0;
}

static bool settings_are_good(struct run_options *options)
{
    struct rs_diagnostics diagnostics = profile_diagnostics();
    struct rs_config config;
    unsigned bad = rs_config_parse(environ, &diagnostics, &config);

    options->sets_nothing = !config.anything_set && !observe(options);
    has_nvtx_phases = config.nvtx_phases;
    rs_config_free(&config);
    return bad == 0;
}

/* Finds the version of a library in the bytes of its file, and copies as much as fits into
 * `room` bytes; "" if there is none. */
static void read_version(const char *file, size_t bytes, char *version, size_t room)
{
    const char *mark = memmem(file, bytes, RS_JOB_MARK_BEFORE, strlen(RS_JOB_MARK_BEFORE));

    version[0] = '\0';
    if (mark) {
        mark += strlen(RS_JOB_MARK_BEFORE);
        snprintf(version, room, "%.*s", (int)rs_min(room, (size_t)(file + bytes - mark)), mark);
    }
}

/* Checks that the library has this command's version: otherwise its counters could not be read, and
 * a job's limit not be kept.  Returns false after saying that it has another one.  Returns true for
 * a file that cannot be read, which is reported elsewhere. */
static bool library_is_ours(const char *library)
{
    int fd = open(library, O_RDONLY | O_CLOEXEC);
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    void *file = bytes <= 0 ? MAP_FAILED : mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    char version[sizeof(RS_JOB_MARK)];
    bool is_ours = file == MAP_FAILED;

    if (fd >= 0)
        close(fd);
    if (is_ours)
        return true;
    read_version(file, (size_t)bytes, version, sizeof(version));
    munmap(file, (size_t)bytes);
    is_ours = strcmp(version, RMMSHIM_VERSION) == 0;
    if (!is_ours)
        tool_say("%s has %s%s, but this command has version " RMMSHIM_VERSION
                 ": use both from one installation",
                 library, *version ? "version " : "another version", version);
    return is_ours;
}

static int stay(char **program, const struct run_options *options)
{
    struct run_outcome outcome = {.runs = 0};
    int code;

    if (!run_end_begin(options))
        return TOOL_RUN_FAILED;
    job_begin();
    if (options->finds_min)
        return find_min(program, options);
    if (!parent_run(program, PARENT_STREAMS_OWN, &outcome.result))
        return TOOL_RUN_FAILED;
    job_take_summary(&outcome.summary);
    code = run_end(options, program, &outcome);
    summary_clear(&outcome.summary);
    parent_end_as(&outcome.result);
    return code;
}

static int check_and_start(char **program, struct run_options *options)
{
    char library[PATH_MAX];
    int failed;

    if ((options->profile && !profile_enter(options->profile)) || !run_options_agree(options) ||
        !settings_are_good(options) || !limit_job_begin(options->becomes) || !library_find(library))
        return TOOL_RUN_FAILED;
    failed = library_check_program(library, program[0]);
    if (failed)
        return failed;
    if (!library_is_ours(library) || !library_preload(library) ||
        (has_nvtx_phases && !library_inject_nvtx(library)))
        return TOOL_RUN_FAILED;
    library_make_way(library, program[0]);
    return options->becomes ? parent_become(program) : stay(program, options);
}

static int run_program_command(char **arguments)
{
    struct run_options options = {.becomes = false};

    for (; *arguments && **arguments == '-'; arguments++) {
        if (strcmp(*arguments, "--") == 0) {
            arguments++;
            break;
        }
        if (tool_is_help(*arguments)) {
            tool_print_help(&tool_run);
            return TOOL_OK;
        }
        if (strcmp(*arguments, "--help-all") == 0) {
            tool_print_usage(&tool_run);
            putchar('\n');
            run_options_print_all_help();
            return TOOL_OK;
        }
        if (!run_options_take(&arguments, &options))
            return TOOL_RUN_FAILED;
    }
    if (!*arguments) {
        tool_say("no program given; see `rmmshim run --help`");
        return TOOL_RUN_FAILED;
    }
    return check_and_start(arguments, &options);
}

const struct tool_command tool_run = {
    .name = "run",
    .arguments = "[OPTIONS] [--] PROGRAM [ARGUMENTS...]",
    .summary = "Runs a program with its GPU memory served as the options say",
    .run = run_program_command,
    .print_help = run_options_print_help,
};

/* ---- rmmshim path: where the library is, for whoever sets LD_PRELOAD without `run` ---- */

static int path(char **arguments)
{
    char library[PATH_MAX];

    if (*arguments) {
        tool_say("%s: `rmmshim path` takes no argument", *arguments);
        return TOOL_USAGE;
    }
    if (!library_find(library))
        return TOOL_FINDING;
    puts(library);
    return TOOL_OK;
}

const struct tool_command tool_path = {
    .name = "path",
    .arguments = "",
    .summary = "Prints the path of the library, for LD_PRELOAD",
    .run = path,
    .help = "Prints the path of the library that `rmmshim run` preloads: RMMSHIM_LIBRARY if\n"
            "this variable is set, else librmmshim.so beside this command.\n\n"
            "exit codes: 0 printed; 1 there is no library; 2 wrong usage\n\n"
            "example: LD_PRELOAD=$(rmmshim path) RMM_POOL_SIZE=4GiB ./app",
};
