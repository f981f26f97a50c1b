/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim report: what recordings say (RMM_RECORD), as a page, a picture or a summary. */
#include "base/check.h"
#include "base/lock.h"
#include "base/output.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- progress ---- */

static bool is_shown;

void progress_show(const char *what, uint64_t done, uint64_t all)
{
    enum { FIRST_NS = 300000000, EACH_NS = 50000000, TEXT_BYTES = 128 };
    static uint64_t next_ns;
    static const char bar[] = "========================================";
    char text[TEXT_BYTES];
    int columns = sizeof(bar) - 1, full = all ? (int)((uint64_t)columns * done / all) : 0, length;

    next_ns = next_ns ? next_ns : rs_clock_ns() + FIRST_NS;
    if (rs_clock_ns() < next_ns || !isatty(STDERR_FILENO))
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

typedef void writer(FILE *to, struct analysis *analysis);

static bool write_to(const char *path, writer *write, struct analysis *analysis)
{
    struct output output;

    output_begin(&output);
    write(output.to, analysis);
    return output_write(&output, path);
}

static bool write_all(const char *page, const char *plot, struct analysis *analysis)
{
    bool is_good = !page || write_to(page, page_write, analysis);

    is_good = (!plot || write_to(plot, plot_write, analysis)) && is_good;
    return page || plot ? is_good : write_to(NULL, summary_write, analysis);
}

static bool is_wrong_usage(const char *page, const char *plot, char *const *files)
{
    if (!*files) {
        tool_say("report needs the FILE of a recording; see `rmmshim report --help`");
        return true;
    }
    if (page && plot && output_is_same(page, plot)) {
        tool_say("-o and --svg name the same file");
        return true;
    }
    return output_is_input(page, files) || output_is_input(plot, files);
}

static int run(char **arguments)
{
    const char *page = NULL, *plot = NULL;
    static struct analysis analysis;
    int code;

    if (!tool_take_options(arguments, true,
                           (const struct tool_option[]){{"-o", NULL, &page, true, 0},
                                                        {"--svg", NULL, &plot, true, 0},
                                                        {.name = NULL}}) ||
        is_wrong_usage(page, plot, arguments))
        return TOOL_USAGE;
    code = input_read(&analysis, arguments);
    if (analysis.run_count > 0 && !write_all(page, plot, &analysis))
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
