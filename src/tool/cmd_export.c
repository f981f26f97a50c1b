/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim export: recordings in the formats of other tools. */
#include "base/check.h"
#include "tool/export/export.h"
#include "tool/report/outputs.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>

static const struct export_format *const formats[] = {&export_perfetto, &export_pytorch,
                                                      &export_csv, &export_folded};

static const struct export_format *find_format(const char *name)
{
    const char *names[RS_ARRAY_LENGTH(formats) + 1] = {NULL};

    if (!name) {
        tool_say("export needs --format; see rmmshim export --help");
        return NULL;
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(formats); i++) {
        names[i] = formats[i]->name;
        if (strcmp(names[i], name) == 0)
            return formats[i];
    }
    tool_say_unknown("format", name, names);
    return NULL;
}

static bool is_wrong_usage(const struct export_format *format, const char *path, char *const *files)
{
    if (!*files) {
        tool_say("export needs the FILE of a recording; see rmmshim export --help");
        return true;
    }
    if (format->is_of_one && files[1]) {
        tool_say("%s has no place for a second process: export each recording to a file of its own",
                 format->name);
        return true;
    }
    return output_is_input(path, files);
}

/* Reads all files, and writes what they say into memory. */
static int read_files(const struct export_format *format, char *const *files, struct export *export,
                      struct analysis *analysis)
{
    int code = TOOL_OK;

    fputs(format->head, export->to);
    for (; *files; files++)
        if (input_read(analysis, *files) != TOOL_OK)
            code = TOOL_FINDING;
    progress_clear();
    if (format->end && analysis->run_count > 0)
        format->end(export);
    return code;
}

static int run(char **arguments)
{
    const char *name = NULL, *path = NULL;
    struct analysis analysis = {.run_count = 0};
    struct export export = {.analysis = &analysis};
    const struct export_format *format;
    struct output output;
    int code;

    if (!tool_take_options(arguments, true,
                           (const struct tool_option[]){{"--format", NULL, &name, true, 0},
                                                        {"-o", NULL, &path, true, 0},
                                                        {.name = NULL}}) ||
        !(format = find_format(name)) || is_wrong_usage(format, path, arguments))
        return TOOL_USAGE;
    if (!output_begin(&output))
        return TOOL_FINDING;
    export.to = output.to;
    export.observer.see = format->see;
    analysis.observer = format->see ? &export.observer : NULL;
    code = read_files(format, arguments, &export, &analysis);
    if (!(analysis.run_count > 0 ? output_write(&output, path) : output_end(&output)))
        code = TOOL_FINDING;
    free(output.bytes);
    rs_hash_clear(&export.tracks);
    analysis_release(&analysis);
    return code;
}

const struct tool_command tool_export = {
    .name = "export",
    .arguments = "--format perfetto|pytorch|csv|folded FILE... [-o FILE]",
    .summary = "Writes recordings of memory in the formats of other tools",
    .run = run,
    .help =
        "Reads recordings (rmmshim run --record FILE), or logs in RMM's CSV format (RMM_LOG), and\n"
        "writes to standard output:\n\n"
        "  perfetto  a trace for https://ui.perfetto.dev: used, held and limit by device, phases,\n"
        "            marks and refusals by thread; of several processes too\n"
        "  pytorch   a memory snapshot for https://pytorch.org/memory_viz: each allocation and\n"
        "            free with its call site\n"
        "  csv       a log as RMM_LOG and RMM itself write it, for RMM's replay benchmark; it "
        "does\n"
        "            not tell devices apart\n"
        "  folded    bytes by call site at the peak, for flamegraph.pl; of several processes "
        "too\n\n"
        "  -o FILE   write this file instead\n\n"
        "Of a damaged recording, what is whole is used.\n\n"
        "exit codes: 0 all of it is written; 1 a file cannot be read or written, or is damaged;\n"
        "2 wrong usage\n\n"
        "example: rmmshim export --format perfetto rank0.rec rank1.rec -o job.perfetto-trace",
};
