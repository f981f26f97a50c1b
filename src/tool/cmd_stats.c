/* SPDX-License-Identifier: Apache-2.0 */
/* rmmshim stats: all counters of processes that run. */
#include "report/format.h"
#include "tool/process.h"
#include "tool/publication.h"
#include "tool/row.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LABELS_BYTES = 64 };

/* A process whose counters have been read. */
struct subject {
    struct publication page;
    char labels[LABELS_BYTES];
};

struct subjects {
    struct subject **all; /* each allocated by itself: reports refer to it */
    size_t count;
};

/* ---- reading ---- */

static void *need(void *memory)
{
    if (!memory) {
        tool_say("out of memory");
        exit(TOOL_FINDING);
    }
    return memory;
}

/* Reads the page of the process, which may be anything.  False where there is nothing to say. */
static bool add_subject(struct subjects *subjects, const struct process *process)
{
    struct subject *subject = need(calloc(1, sizeof(*subject)));

    if (!publication_read(&subject->page, process->file)) {
        publication_release(&subject->page);
        free(subject);
        return false;
    }
    subject->page.process = process->number;
    snprintf(subject->labels, sizeof(subject->labels), ",pid=\"%d\"", process->number);
    subjects->all = need(realloc(subjects->all, (subjects->count + 1) * sizeof(struct subject *)));
    subjects->all[subjects->count++] = subject;
    return true;
}

static void release(struct subjects *subjects)
{
    for (size_t i = 0; i < subjects->count; i++) {
        publication_release(&subjects->all[i]->page);
        free(subjects->all[i]);
    }
    free(subjects->all);
}

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
    is_read = add_subject(subjects, &process);
    if (!is_read)
        tool_say("process %d %s", number,
                 publication_has_directory(process.file) ? "has a page that makes no sense"
                                                         : "is served and has no memory yet");
    process_close(&process);
    return is_read;
}

static bool take_subject(void *data, const struct process *process)
{
    return add_subject(data, process) || !publication_has_directory(process->file);
}

static void read_all(struct subjects *subjects)
{
    size_t unreadable = process_each(take_subject, subjects);

    if (subjects->count == 0)
        rows_say_none();
    rows_say_unreadable(unreadable);
}

/* ---- writing ---- */

static const struct publication *being_written;

static const char *expression_of(const struct rs_reported_stack *stack)
{
    return publication_stack(being_written, stack)->expression;
}

static struct rs_report_subject described(const struct subject *subject)
{
    return (struct rs_report_subject){
        .process = subject->page.process,
        .program = subject->page.program,
        .stacks = subject->page.stacks,
        .stack_count = subject->page.count,
        .expression = expression_of,
        .more_labels = subject->labels,
    };
}

static void put_prometheus(struct rs_page *page, const struct subjects *subjects)
{
    struct rs_report_subject *all = need(calloc(subjects->count + 1, sizeof(*all)));

    for (size_t i = 0; i < subjects->count; i++)
        all[i] = described(subjects->all[i]);
    rs_report_put_prometheus(page, all, subjects->count);
    free(all);
}

/* An array where it is of all. */
static void put_each(struct rs_page *page, const struct subjects *subjects,
                     enum rs_statistics_format format, bool is_of_all)
{
    bool is_array = format == RS_STATISTICS_JSON && is_of_all;

    if (is_array)
        rs_page_put(page, "[");
    for (size_t i = 0; i < subjects->count; i++) {
        struct rs_report_subject subject = described(subjects->all[i]);
        being_written = &subjects->all[i]->page;
        if (is_array && i > 0)
            rs_page_put(page, ",");
        rs_report_put(page, format, &subject);
    }
    if (is_array)
        rs_page_put(page, "]\n");
}

/* False when it could not be written; that has been said then. */
static bool write_out(const struct subjects *subjects, enum rs_statistics_format format,
                      bool is_of_all)
{
    static struct rs_page page;
    struct rs_page_file file = {.variable = "standard output", .state = RS_PAGE_FILE_NONE};

    rs_page_begin(&page, &file, NULL);
    page.fd = STDOUT_FILENO;
    if (format == RS_STATISTICS_PROMETHEUS)
        put_prometheus(&page, subjects);
    else
        put_each(&page, subjects, format, is_of_all);
    rs_page_end(&page);
    return file.error == 0;
}

static int show(const char *whose, enum rs_statistics_format format)
{
    struct subjects subjects = {.count = 0};
    bool is_of_all = strcmp(whose, "all") == 0;
    int number = process_parse(whose);
    bool is_good = is_of_all;

    if (!is_of_all && !number) {
        tool_say("'%s' is neither a process number nor `all`", whose);
        return TOOL_USAGE;
    }
    if (is_of_all)
        read_all(&subjects);
    else
        is_good = read_one(&subjects, number);
    is_good = is_good && write_out(&subjects, format, is_of_all);
    release(&subjects);
    return is_good ? TOOL_OK : TOOL_FINDING;
}

/* ---- the command ---- */

static bool take_format(const char *option, enum rs_statistics_format *format)
{
    if (*format != RS_STATISTICS_TEXT) {
        tool_say("one of --json and --prom");
        return false;
    }
    if (strcmp(option, "--json") == 0)
        *format = RS_STATISTICS_JSON;
    else if (strcmp(option, "--prom") == 0)
        *format = RS_STATISTICS_PROMETHEUS;
    else
        tool_say_unknown("option", option, (const char *const[]){"--json", "--prom", NULL});
    return *format != RS_STATISTICS_TEXT;
}

static int stats(char **arguments)
{
    enum rs_statistics_format format = RS_STATISTICS_TEXT;
    const char *whose = NULL;

    for (; *arguments; arguments++) {
        if (**arguments == '-') {
            if (!take_format(*arguments, &format))
                return TOOL_USAGE;
        } else if (whose) {
            tool_say("one process number, or `all`");
            return TOOL_USAGE;
        } else {
            whose = *arguments;
        }
    }
    if (!whose) {
        tool_say("no process number; `rmmshim stats --help` says how");
        return TOOL_USAGE;
    }
    return show(whose, format);
}

static void help(void)
{
    puts("As the report of RMM_STATISTICS at exit, with the program's own counters (program); "
         "counters "
         "that\n"
         "take a walk of the process's memory are left out.\n\n"
         "--json    an object as in that report, with `all` an array of them\n"
         "--prom    for Prometheus's textfile collector, with the label pid\n\n"
         "exit codes: 1 when the process cannot be read, 2 for wrong usage\n\n"
         "example: rmmshim stats all --prom >/var/lib/node_exporter/rmmshim.prom");
}

const struct tool_command tool_stats = {
    .name = "stats",
    .arguments = "PID|all [--json|--prom]",
    .summary = "Shows all counters of a process, or of all",
    .run = stats,
    .help = help,
};
