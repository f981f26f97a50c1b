/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/subjects.h"

#include "report/format.h"
#include "tool/print.h"
#include "tool/row.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- reading ---- */

static bool make_room(struct subjects *subjects)
{
    struct subject **all = realloc(subjects->all, (subjects->count + 1) * sizeof(struct subject *));

    if (all)
        subjects->all = all;
    return all != NULL;
}

bool subjects_add(struct subjects *subjects, const struct process *process)
{
    struct subject *subject = calloc(1, sizeof(*subject));

    if (!subject || !make_room(subjects)) {
        subjects->is_short = true;
        free(subject);
        return false;
    }
    if (!publication_read(&subject->page, process->file)) {
        publication_release(&subject->page);
        free(subject);
        return false;
    }
    subject->page.process = process->number;
    identity_read(process, &subject->identity);
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
        .rank = subject->page.rank,
        .stacks = subject->page.stacks,
        .stack_count = subject->page.count,
        .expression = expression_of,
    };
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

bool subjects_write(const struct subjects *subjects, enum rs_statistics_format format,
                    bool is_of_all, int fd, const char *name)
{
    static struct rs_page page;
    struct rs_page_file file = {.variable = name, .state = RS_PAGE_FILE_NONE};

    rs_page_begin(&page, &file, NULL);
    page.fd = fd;
    put_each(&page, subjects, format, is_of_all);
    rs_page_end(&page);
    return file.error == 0;
}

/* ---- for Prometheus ---- */

static void put_subject(struct rs_node *list, const struct subject *subject, bool has_counters)
{
    const struct publication *page = &subject->page;
    static struct row row;

    for (size_t i = 0; i < page->count; i++) {
        struct rs_node *object;
        row_fill(&row, page->process, &subject->identity, page, &page->stacks[i]);
        object = row_put(list, &row);
        if (has_counters)
            rs_report_fill_counters(object, &page->stacks[i].report, true);
    }
}

bool subjects_write_metrics(const struct subjects *subjects, bool has_counters, int fd,
                            const char *name)
{
    static struct rs_document document;
    struct rs_node *list;
    bool is_written;

    rs_document_begin(&document);
    list = rs_node_list(&document.root, "processes");
    for (size_t i = 0; i < subjects->count; i++)
        put_subject(list, subjects->all[i], has_counters);
    is_written = print_metrics(list, fd, name);
    rs_document_release(&document);
    return is_written;
}
