/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim stats: all counters of processes that run. */
#include "report/counters.h"
#include "tool/row.h"
#include "tool/subjects.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- reading ---- */

bool subjects_add(struct subjects *subjects, const struct process *process)
{
    struct subject *subject = tool_grow(NULL, sizeof(*subject));

    if (!publication_read(&subject->page, process->file)) {
        publication_release(&subject->page);
        free(subject);
        return false;
    }
    subject->page.process = process->number;
    identity_read(process, &subject->identity);
    subjects->all = tool_grow(subjects->all, (subjects->count + 1) * sizeof(struct subject *));
    subjects->all[subjects->count++] = subject;
    return true;
}

static bool take(void *data, const struct process *process)
{
    return subjects_add(data, process) || !publication_has_directory(process->file);
}

void subjects_add_all(struct subjects *subjects)
{
    subjects->unreadable = process_each(take, subjects);
}

void subjects_release(struct subjects *subjects)
{
    for (size_t i = 0; i < subjects->count; i++) {
        publication_release(&subjects->all[i]->page);
        free(subjects->all[i]);
    }
    free(subjects->all);
    *subjects = (struct subjects){.count = 0};
}

/* ---- writing ---- */

static void put_rows(struct rs_node *list, const struct subject *subject, bool has_counters)
{
    const struct publication *page = &subject->page;
    static struct row row;

    for (size_t i = 0; i < page->count; i++) {
        struct rs_node *object;
        row_fill(&row, page->process, &subject->identity, page, &page->stacks[i]);
        object = row_put(list, &row);
        if (has_counters)
            rs_report_fill_counters(object, &page->stacks[i].report, true, false);
    }
}

bool subjects_write(const struct subjects *subjects, enum rs_statistics_format format,
                    bool is_of_all, bool has_counters, int fd, const char *name)
{
    static struct rs_document document;
    struct rs_node *root = &document.root;
    bool is_written;

    rs_document_begin(&document);
    if (is_of_all || format == RS_STATISTICS_PROMETHEUS)
        root = rs_node_list(root, "processes");
    for (size_t i = 0; i < subjects->count; i++) {
        const struct publication *page = &subjects->all[i]->page;
        if (format == RS_STATISTICS_PROMETHEUS)
            put_rows(root, subjects->all[i], has_counters);
        else
            rs_report_fill(is_of_all ? rs_node_object(root, NULL) : root,
                           &(struct rs_report_subject){
                               .process = page->process,
                               .program = page->program,
                               .rank = page->rank,
                               .stacks = page->stacks,
                               .stack_count = page->count,
                           },
                           format);
    }
    is_written = tool_print(root, format, fd, name);
    rs_document_release(&document);
    return is_written;
}

/* ---- rmmshim stats ---- */

/* False after saying why there is nothing. */
static bool read_one(struct subjects *subjects, int number)
{
    struct process process;
    enum process_answer answer = process_open(number, &process);
    bool is_read = answer == PROCESS_SERVED && subjects_add(subjects, &process);

    if (!is_read)
        tool_say("process %d %s", number,
                 answer != PROCESS_SERVED ? process_answer_text(answer)
                 : publication_has_directory(process.file)
                     ? "has published counters that are damaged"
                     : "is served and has no memory yet");
    process_close(&process);
    return is_read;
}

static int show(const char *whose, enum rs_statistics_format format, bool has_counters)
{
    struct subjects subjects = {.count = 0};
    bool is_of_all = strcmp(whose, "all") == 0, is_good = true;
    int number = process_parse(whose);

    if (!is_of_all && !number) {
        tool_say("'%s' is not a process ID, nor 'all'; 'rmmshim ls' lists them", whose);
        return TOOL_USAGE;
    }
    if (is_of_all) {
        subjects_add_all(&subjects);
        if (subjects.count == 0)
            rows_say_none();
        rows_say_unreadable(subjects.unreadable);
    } else {
        is_good = read_one(&subjects, number);
    }
    is_good = is_good && subjects_write(&subjects, format, is_of_all, has_counters, STDOUT_FILENO,
                                        "standard output");
    subjects_release(&subjects);
    return is_good ? TOOL_OK : TOOL_FINDING;
}

static int stats(char **arguments)
{
    bool is_json = false, is_prometheus = false, has_counters = false;
    const struct tool_option options[] = {
        {.name = "--json", .flag = &is_json},
        {.name = "--prom", .flag = &is_prometheus},
        {.name = "--all-metrics", .flag = &has_counters},
        {.name = NULL},
    };

    if (!tool_take_options(arguments, true, options))
        return TOOL_USAGE;
    if (is_json && is_prometheus)
        tool_say("use only one of --json and --prom");
    else if (!*arguments)
        tool_say("no process ID; 'rmmshim ls' lists them, and 'all' means all");
    else if (arguments[1])
        tool_say("expected one process ID, or 'all'");
    else if (has_counters && !is_prometheus)
        tool_say("--all-metrics needs --prom; text and JSON have all counters anyway");
    else
        return show(*arguments,
                    is_json         ? RS_STATISTICS_JSON
                    : is_prometheus ? RS_STATISTICS_PROMETHEUS
                                    : RS_STATISTICS_TEXT,
                    has_counters);
    return TOOL_USAGE;
}

const struct tool_command tool_stats = {
    .name = "stats",
    .arguments = "PID|all [--json|--prom] [--all-metrics]",
    .summary = "Shows all counters of a process, or of all",
    .run = stats,
    .help =
        "Prints what RMM_STATISTICS reports at exit, and the program's own counters; counters for\n"
        "which the process's memory must be searched are left out.\n\n"
        "--json    an object as in that report, with `all` an array of them\n"
        "--prom    for Prometheus's textfile collector: what each process uses, holds and may "
        "hold; with\n"
        "          --all-metrics also each counter of each resource\n\n"
        "exit codes: 1 when the process cannot be read, 2 for wrong usage\n\n"
        "example: rmmshim stats all --prom >/var/lib/node_exporter/rmmshim.prom",
};
