/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim export: recordings in the formats of other tools. */
#include "tool/export/export.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <string.h>

static const char *const names[] = {"perfetto", "pytorch", "csv", "folded", NULL};
static const struct export_format *const formats[] = {&export_perfetto, &export_pytorch,
                                                      &export_csv, &export_folded};

static const struct export_format *find_format(const char *name)
{
    int at;

    if (!name) {
        tool_say("export needs --format, the format to write; see `rmmshim export --help`");
        return NULL;
    }
    at = tool_find_word("format", name, names);
    return at < 0 ? NULL : formats[at];
}

static bool is_wrong_usage(const struct export_format *format, const char *name, const char *path,
                           char *const *files)
{
    if (!*files) {
        tool_say("export needs the FILE of a recording; see `rmmshim export --help`");
        return true;
    }
    if (format->is_of_one && files[1]) {
        tool_say(
            "the format %s holds a single recording: export each recording to a file of its own",
            name);
        return true;
    }
    return output_is_input(path, files);
}

static int run(char **arguments)
{
    const char *name = NULL, *path = NULL;
    static struct analysis analysis;
    static struct export export = {.analysis = &analysis};
    const struct export_format *format;
    static struct output output;
    int code;

    if (!tool_take_options(arguments, true,
                           (const struct tool_option[]){{"--format", NULL, &name, true, 0},
                                                        {"-o", NULL, &path, true, 0},
                                                        {.name = NULL}}) ||
        !(format = find_format(name)) || is_wrong_usage(format, name, path, arguments))
        return TOOL_USAGE;
    output_begin(&output);
    export.to = output.to;
    export.observer.see = format->see;
    analysis.observer = format->see ? &export.observer : NULL;
    fputs(format->head, export.to);
    code = input_read(&analysis, arguments);
    if (analysis.run_count == 0)
        return code;
    if (format->end)
        format->end(&export);
    return output_write(&output, path) ? code : TOOL_FINDING;
}

const struct tool_command tool_export = {
    .name = "export",
    .arguments = "--format perfetto|pytorch|csv|folded FILE... [-o FILE]",
    .summary =
        "Converts recordings to the formats of other tools: Perfetto, PyTorch, RMM, flame graphs",
    .run = run,
    .help =
        "Reads recordings (rmmshim run --record FILE), or event logs in RMM's CSV format\n"
        "(RMM_LOG), and writes them to standard output in the format of another tool:\n\n"
        "  perfetto  a trace for https://ui.perfetto.dev: used memory, held memory and limit of\n"
        "            each device over time; phases, marks and refused requests of each thread\n"
        "  pytorch   a memory snapshot for https://pytorch.org/memory_viz: each allocation and\n"
        "            each free, with the code that allocated the block\n"
        "  csv       an event log in the format of RMM_LOG and of RMM, for RMM's replay\n"
        "            benchmark; a row does not say which device it is about\n"
        "  folded    for flamegraph.pl: the bytes that were in use at the peak, by call site\n\n"
        "  -o FILE   write to this file instead of standard output\n\n"
        "perfetto and folded can hold several recordings, pytorch and csv only one. Of a\n"
        "damaged recording, the undamaged parts are used.\n\n"
        "exit codes: 0 the recordings are converted; 1 a file cannot be read or written, or is\n"
        "damaged; 2 wrong usage\n\n"
        "example: rmmshim export --format perfetto rank0.rec rank1.rec -o job.perfetto-trace",
};
