/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim stats: all counters of processes that run. */
#include "tool/row.h"
#include "tool/subjects.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* False after saying why there is nothing. */
static bool read_one(struct subjects *subjects, int number)
{
    struct process process;
    enum process_answer answer = process_open(number, &process);
    bool is_read;

    if (answer != PROCESS_SERVED) {
        tool_say("process %d %s", number, process_answer_text(answer));
        return false;
    }
    is_read = subjects_add(subjects, &process);
    if (!is_read && !subjects->is_short)
        tool_say("process %d %s", number,
                 publication_has_directory(process.file) ? "has published counters that are damaged"
                                                         : "is served and has no memory yet");
    process_close(&process);
    return is_read;
}

static void read_all(struct subjects *subjects)
{
    subjects_add_all(subjects);
    if (subjects->is_short)
        return;
    if (subjects->count == 0)
        rows_say_none();
    rows_say_unreadable(subjects->unreadable);
}

static int show(const char *whose, enum rs_statistics_format format, bool has_counters)
{
    struct subjects subjects = {.count = 0};
    bool is_of_all = strcmp(whose, "all") == 0;
    int number = process_parse(whose);
    bool is_good = is_of_all;

    if (!is_of_all && !number) {
        tool_say("'%s' is not a process ID, nor 'all'; 'rmmshim ls' lists them", whose);
        return TOOL_USAGE;
    }
    if (is_of_all)
        read_all(&subjects);
    else
        is_good = read_one(&subjects, number);
    if (subjects.is_short) {
        tool_say("out of memory");
        is_good = false;
    }
    if (is_good && format == RS_STATISTICS_PROMETHEUS)
        is_good = subjects_write_metrics(&subjects, has_counters, STDOUT_FILENO, "standard output");
    else if (is_good)
        is_good = subjects_write(&subjects, format, is_of_all, STDOUT_FILENO, "standard output");
    subjects_release(&subjects);
    return is_good ? TOOL_OK : TOOL_FINDING;
}

/* ---- the command ---- */

static bool take_format(const char *option, enum rs_statistics_format *format)
{
    if (*format != RS_STATISTICS_TEXT) {
        tool_say("use only one of --json and --prom");
        return false;
    }
    if (strcmp(option, "--json") == 0)
        *format = RS_STATISTICS_JSON;
    else if (strcmp(option, "--prom") == 0)
        *format = RS_STATISTICS_PROMETHEUS;
    else
        tool_say_unknown("option", option,
                         (const char *const[]){"--json", "--prom", "--all-metrics", NULL});
    return *format != RS_STATISTICS_TEXT;
}

static int stats(char **arguments)
{
    enum rs_statistics_format format = RS_STATISTICS_TEXT;
    const char *whose = NULL;
    bool has_counters = false;

    for (; *arguments; arguments++) {
        if (strcmp(*arguments, "--all-metrics") == 0) {
            has_counters = true;
        } else if (**arguments == '-') {
            if (!take_format(*arguments, &format))
                return TOOL_USAGE;
        } else if (whose) {
            tool_say("expected one process ID, or 'all'");
            return TOOL_USAGE;
        } else {
            whose = *arguments;
        }
    }
    if (!whose) {
        tool_say("no process ID; 'rmmshim ls' lists them, and 'all' means all");
        return TOOL_USAGE;
    }
    if (has_counters && format != RS_STATISTICS_PROMETHEUS) {
        tool_say("--all-metrics needs --prom; text and JSON have all counters anyway");
        return TOOL_USAGE;
    }
    return show(whose, format, has_counters);
}

static void help(void)
{
    puts(
        "Prints what RMM_STATISTICS reports at exit, and the program's own counters; counters for\n"
        "which the process's memory must be searched are left out.\n\n"
        "--json    an object as in that report, with `all` an array of them\n"
        "--prom    for Prometheus's textfile collector: what each process uses, holds and may "
        "hold; with\n"
        "          --all-metrics also each counter of each resource\n\n"
        "exit codes: 1 when the process cannot be read, 2 for wrong usage\n\n"
        "example: rmmshim stats all --prom >/var/lib/node_exporter/rmmshim.prom");
}

const struct tool_command tool_stats = {
    .name = "stats",
    .arguments = "PID|all [--json|--prom] [--all-metrics]",
    .summary = "Shows all counters of a process, or of all",
    .run = stats,
    .help = help,
};
