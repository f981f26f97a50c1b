/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim export: a recording in the formats of other tools. */
#include "tool/export/export.h"
#include "tool/tool.h"

#include <errno.h>
#include <string.h>

static const struct format {
    const char *name;
    bool (*write)(const struct recording *recording, FILE *file);
    bool (*write_at)(const struct recording *recording, const char *path); /* or this */
} formats[] = {
    {"csv", export_csv, NULL},
    {"folded", export_folded, NULL},
    {"speedscope", export_speedscope, NULL},
    {"sqlite", NULL, export_sqlite},
    {"pytorch", export_pytorch, NULL},
    {"perfetto", export_perfetto, NULL},
    {"recording", export_recording, NULL},
};

struct words {
    const char *path, *out;
    const struct format *format;
};

static const struct format *find_format(const char *name)
{
    const char *names[RS_ARRAY_LENGTH(formats) + 1] = {NULL};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(formats); i++) {
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
        names[i] = formats[i].name;
    }
    tool_say_unknown("format", name, names);
    return NULL;
}

static bool take_option(struct words *words, char ***arguments)
{
    static const char *const options[] = {"--format", "-o", NULL};
    bool failed = false;
    const char *value;

    if ((value = tool_option_value(arguments, "--format", &failed)))
        return (words->format = find_format(value));
    if (!failed && (value = tool_option_value(arguments, "-o", &failed))) {
        words->out = value;
        return true;
    }
    if (!failed)
        tool_say_unknown("option", **arguments, options);
    return false;
}

static bool parse(char **arguments, struct words *words)
{
    for (; *arguments; arguments++) {
        if (**arguments == '-') {
            if (!take_option(words, &arguments))
                return false;
        } else if (words->path) {
            tool_say("one file; `rmmshim export --help` says how");
            return false;
        } else {
            words->path = *arguments;
        }
    }
    if (words->path && words->out && words->format) {
        if (words->format->write || strcmp(words->out, "-") != 0)
            return true;
        tool_say("%s needs a file, not standard output", words->format->name);
        return false;
    }
    tool_say("%s; `rmmshim export --help` says how", !words->path     ? "no file"
                                                     : !words->format ? "no --format"
                                                                      : "no -o OUT");
    return false;
}

/* Writes, and closes the file unless it is standard output.  0 or an errno. */
static int write_file(const struct words *words, const struct recording *recording, FILE *file)
{
    bool is_short = !words->format->write(recording, file);
    int failed;

    errno = 0;
    failed =
        file == stdout ? fflush(file) != 0 || ferror(file) : (ferror(file) | fclose(file)) != 0;
    if (is_short)
        return ENOMEM;
    return failed ? (errno ? errno : EIO) : 0;
}

/* "-" is standard output, which a database cannot be written to. */
static int write_out(const struct words *words, const struct recording *recording)
{
    bool is_stdout = strcmp(words->out, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(words->out, "we");
    int error = file ? 0 : errno;

    if (file && words->format->write)
        error = write_file(words, recording, file);
    else if (file && !is_stdout)
        error = fclose(file) != 0 ? errno : 0;
    if (error) {
        tool_say("%s: %s", words->out, strerror(error));
        return TOOL_FINDING;
    }
    if (words->format->write_at && !words->format->write_at(recording, words->out))
        return TOOL_FINDING;
    return recording->damage[0] ? TOOL_FINDING : TOOL_OK;
}

static int export(char **arguments)
{
    struct words words = {.path = NULL};
    struct recording recording;
    int code;

    if (!parse(arguments, &words))
        return TOOL_USAGE;
    if (!recording_open(&recording, words.path))
        return TOOL_FINDING;
    code = write_out(&words, &recording);
    recording_close(&recording);
    return code;
}

static void help(void)
{
    puts(
        "Writes a recording (RMM_RECORD), or an event log in RMM's CSV, for other tools; OUT may "
        "be\n"
        "- for standard output.\n\n"
        "  csv         RMM's event log, which RMM's replay benchmark reads\n"
        "  folded      bytes live at the peak by call site, for flamegraph.pl and inferno\n"
        "  speedscope  the same, and all that was allocated, for https://www.speedscope.app\n"
        "  sqlite      a database: blocks, sites, frames, threads, stacks, refusals, marks\n"
        "  pytorch     a memory snapshot for https://pytorch.org/memory_viz\n"
        "  perfetto    counters, phases, marks and refusals for https://ui.perfetto.dev\n"
        "  recording   a recording, also of an event log\n\n"
        "exit codes: 0; 1 the file is damaged (what is whole is written), or no recording; 2 wrong "
        "usage\n\n"
        "example: rmmshim export --format speedscope app.rec -o app.speedscope.json");
}

const struct tool_command tool_export = {
    .name = "export",
    .arguments = "--format csv|folded|speedscope|sqlite|pytorch|perfetto|recording FILE -o OUT",
    .summary = "Writes a recording in the formats of other tools",
    .run = export,
    .help = help,
};
