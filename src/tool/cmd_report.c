/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim report: what recordings say (RMM_RECORD), as a page, a picture or a summary. */
#include "base/check.h"
#include "base/lock.h"
#include "base/output.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- progress ---- */

static bool is_shown;

void progress_show(const char *what, uint64_t done, uint64_t all)
{
    enum { FIRST_NS = 300000000, EACH_NS = 50000000, TEXT_BYTES = 128 };
    static uint64_t next_ns;
    static int is_terminal = -1;
    static const char bar[] = "========================================";
    char text[TEXT_BYTES];
    int columns = sizeof(bar) - 1, full = all ? (int)((uint64_t)columns * done / all) : 0, length;

    if (is_terminal < 0) {
        is_terminal = isatty(STDERR_FILENO);
        next_ns = rs_clock_ns() + FIRST_NS;
    }
    if (!is_terminal || rs_clock_ns() < next_ns)
        return;
    next_ns = rs_clock_ns() + EACH_NS;
    length = snprintf(text, sizeof(text), "\r%s [%.*s%*s] %3d %%", what, full, bar, columns - full,
                      "", all ? (int)(100 * done / all) : 0);
    is_shown = true;
    (void)rs_write_all(STDERR_FILENO, text, (size_t)length);
}

void progress_clear(void)
{
    static const char text[] = "\r\033[K";

    if (is_shown)
        (void)rs_write_all(STDERR_FILENO, text, sizeof(text) - 1);
    is_shown = false;
}

/* ---- the command ---- */

struct wanted {
    const char *page, *plot;
};

typedef void writer(FILE *to, struct analysis *analysis);

static bool write_to(const char *path, writer *write, struct analysis *analysis)
{
    struct output output;
    bool is_good;

    output_begin(&output);
    write(output.to, analysis);
    is_good = output_write(&output, path);
    free(output.bytes);
    return is_good;
}

static bool write_all(const struct wanted *wanted, struct analysis *analysis)
{
    bool is_good = !wanted->page || write_to(wanted->page, page_write, analysis);

    is_good = (!wanted->plot || write_to(wanted->plot, plot_write, analysis)) && is_good;
    return wanted->page || wanted->plot ? is_good : write_to(NULL, summary_write, analysis);
}

static bool is_wrong_usage(const struct wanted *wanted, char *const *files)
{
    if (!*files) {
        tool_say("report needs the FILE of a recording; see rmmshim report --help");
        return true;
    }
    if (wanted->page && wanted->plot && output_is_same(wanted->page, wanted->plot)) {
        tool_say("-o and --svg name the same file");
        return true;
    }
    return output_is_input(wanted->page, files) || output_is_input(wanted->plot, files);
}

static int run(char **arguments)
{
    struct wanted wanted = {NULL, NULL};
    static struct analysis analysis;
    int code;

    if (!tool_take_options(arguments, true,
                           (const struct tool_option[]){{"-o", NULL, &wanted.page, true, 0},
                                                        {"--svg", NULL, &wanted.plot, true, 0},
                                                        {.name = NULL}}) ||
        is_wrong_usage(&wanted, arguments))
        return TOOL_USAGE;
    code = input_read(&analysis, arguments);
    if (analysis.run_count > 0 && !write_all(&wanted, &analysis))
        code = TOOL_FINDING;
    return code;
}

const struct tool_command tool_report = {
    .name = "report",
    .arguments = "FILE... [-o FILE] [--svg FILE]",
    .summary = "Shows memory use from recordings: over time, at its peak, by call site",
    .run = run,
    .help =
        "Reads recordings (rmmshim run --record FILE) of one or more processes, or logs in\n"
        "RMM's CSV format (RMM_LOG). Prints a summary, or writes an HTML page, which needs no\n"
        "other file.\n\n"
        "  -o FILE     write a page: memory over time; the memory used at the peak, by the code\n"
        "              that allocated it; the address space at the peak; sizes and lifetimes\n"
        "              of blocks; memory that phases leave behind; refused requests; waits for\n"
        "              the GPU. It shows several recordings side by side, and compares any two\n"
        "  --svg FILE  write a picture of memory over time\n\n"
        "Of a damaged recording, the undamaged parts are used.\n\n"
        "exit codes: 0 the recordings are reported; 1 a file cannot be read or written, or is\n"
        "damaged; 2 wrong usage\n\n"
        "example: rmmshim report rank0.rec rank1.rec -o report.html",
};
