/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim report: what recordings say (RMM_RECORD), as a page, a picture or a summary. */
#include "base/check.h"
#include "base/log.h"
#include "base/output.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- progress ---- */

static bool is_shown;

static uint64_t now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void progress_show(const char *what, uint64_t done, uint64_t all)
{
    enum { BAR_COLUMNS = 40, FIRST_MS = 300, EACH_MS = 50, TEXT_BYTES = 128 };
    static uint64_t next_ms;
    static int is_terminal = -1;
    char text[TEXT_BYTES], bar[BAR_COLUMNS + 1];
    size_t full = all ? (size_t)(BAR_COLUMNS * done / all) : 0;
    int length;

    if (is_terminal < 0) {
        is_terminal = isatty(STDERR_FILENO);
        next_ms = now_ms() + FIRST_MS;
    }
    if (!is_terminal || now_ms() < next_ms)
        return;
    next_ms = now_ms() + EACH_MS;
    memset(bar, ' ', BAR_COLUMNS);
    memset(bar, '=', rs_min(full, BAR_COLUMNS));
    bar[BAR_COLUMNS] = '\0';
    length = snprintf(text, sizeof(text), "\r%s [%s] %3d %%", what, bar,
                      all ? (int)(100 * done / all) : 0);
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

/* ---- output files ---- */

#define OUTPUT "/dev/stdout"

typedef void writer(FILE *to, struct analysis *analysis);

static bool is_same_file(const char *one, const char *other)
{
    struct stat a, b;

    if (stat(one, &a) != 0 || stat(other, &b) != 0)
        return strcmp(one, other) == 0;
    return a.st_dev == b.st_dev && a.st_ino == b.st_ino && S_ISREG(a.st_mode);
}

/* What is written would take the place of what is read. */
static bool is_input(const char *output, char *const *files)
{
    for (; output && *files; files++)
        if (is_same_file(output, *files)) {
            tool_say("%s is a file to read; write to another one", output);
            return true;
        }
    return false;
}

/* Opens a new file beside `path`, which takes its place when it is complete; or `path` itself,
 * where that is no regular file: `beside` is then empty. */
static int open_beside(const char *path, char beside[PATH_MAX])
{
    struct stat status;
    mode_t mask;
    int fd;

    beside[0] = '\0';
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return open(path, O_WRONLY | O_CLOEXEC);
    if (snprintf(beside, PATH_MAX, "%s.XXXXXX", path) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    fd = mkostemp(beside, O_CLOEXEC);
    umask(mask = umask(0));
    if (fd >= 0)
        (void)fchmod(fd, 0666 & ~mask);
    return fd;
}

/* Returns 0 or an errno. */
static int write_bytes(const char *path, const char *bytes, size_t length)
{
    char beside[PATH_MAX], target[PATH_MAX];
    const char *real;
    int fd, error;

    if (rs_path_is_stream(path))
        return -rs_write_all(strcmp(path, OUTPUT) == 0 ? STDOUT_FILENO : STDERR_FILENO, bytes,
                             length);
    real = realpath(path, target); /* a symbolic link stays one */
    fd = open_beside(real ? real : path, beside);
    if (fd < 0)
        return errno;
    error = -rs_write_all(fd, bytes, length);
    if (close(fd) != 0 && !error)
        error = errno;
    if (!error && *beside && rename(beside, real ? real : path) != 0)
        error = errno;
    if (error && *beside)
        unlink(beside);
    return error;
}

/* Makes all of it in memory, and says in a line what is wrong. */
static bool write_to(const char *path, writer *write, struct analysis *analysis)
{
    char *bytes = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&bytes, &length);
    int error = memory ? 0 : errno;

    if (memory) {
        write(memory, analysis);
        error = ferror(memory) ? ENOMEM : 0;
        error = fclose(memory) != 0 ? ENOMEM : error;
    }
    if (!error)
        error = write_bytes(path, bytes, length);
    free(bytes);
    if (error)
        tool_say("%s: %s", rs_path_is_stream(path) ? "standard output" : path, strerror(error));
    return !error;
}

/* ---- the command ---- */

struct wanted {
    const char *page, *plot;
};

static bool write_all(const struct wanted *wanted, struct analysis *analysis)
{
    bool is_good = true;

    if (wanted->page)
        is_good = write_to(wanted->page, page_write, analysis);
    if (wanted->plot)
        is_good = write_to(wanted->plot, plot_write, analysis) && is_good;
    if (!wanted->page && !wanted->plot)
        is_good = write_to(OUTPUT, summary_write, analysis);
    return is_good;
}

static bool is_wrong_usage(const struct wanted *wanted, char *const *files)
{
    if (!*files) {
        tool_say("report needs the FILE of a recording; see rmmshim report --help");
        return true;
    }
    if (wanted->page && wanted->plot && is_same_file(wanted->page, wanted->plot)) {
        tool_say("-o and --svg name the same file");
        return true;
    }
    return is_input(wanted->page, files) || is_input(wanted->plot, files);
}

static int run(char **arguments)
{
    struct wanted wanted = {NULL, NULL};
    struct analysis analysis = {.run_count = 0};
    int code = TOOL_OK;

    if (!tool_take_options(arguments, true,
                           (const struct tool_option[]){{"-o", NULL, &wanted.page, true},
                                                        {"--svg", NULL, &wanted.plot, true},
                                                        {.name = NULL}}) ||
        is_wrong_usage(&wanted, arguments))
        return TOOL_USAGE;
    for (char **file = arguments; *file; file++)
        if (input_read(&analysis, *file) != TOOL_OK)
            code = TOOL_FINDING;
    progress_clear();
    if (analysis.run_count > 0 && !write_all(&wanted, &analysis))
        code = TOOL_FINDING;
    analysis_release(&analysis);
    return code;
}

const struct tool_command tool_report = {
    .name = "report",
    .arguments = "FILE... [-o FILE] [--svg FILE]",
    .summary = "Shows what recordings of memory say: over time, at the peak, by call site",
    .run = run,
    .help =
        "Reads recordings (rmmshim run --record FILE) of one or more processes, or logs in RMM's\n"
        "CSV format (RMM_LOG). Prints a summary, or writes a page for a browser, which needs\n"
        "nothing but itself.\n\n"
        "  -o FILE     write a page: memory over time, what the peak was made of, the address\n"
        "              space at the peak, sizes and lifetimes, growth between phases, refusals "
        "and\n"
        "              waits; several recordings side by side, and any two compared\n"
        "  --svg FILE  write a picture of memory over time\n\n"
        "Of a damaged recording, what is whole is used.\n\n"
        "exit codes: 0 all of it is reported; 1 a file cannot be read or written, or is damaged;\n"
        "2 wrong usage\n\n"
        "example: rmmshim report rank0.rec rank1.rec -o report.html",
};
