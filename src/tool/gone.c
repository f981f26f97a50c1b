/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/gone.h"

#include "base/arithmetic.h"
#include "base/check.h"
#include "report/format.h"
#include "report/publish.h"
#include "shared/published.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What is read is as a process left it that may have been anything: each place is looked at before
 * it is followed. */
struct gone {
    const char *file;
    const struct rs_publication *head;
    const struct rs_published_stack *from; /* of the directory */
    const struct rs_published_counter *counters;
    uint32_t stack_count, counter_count;
    struct rs_reported_stack stacks[RS_DEVICES_MAX * RS_KINDS];
    size_t count;
};

bool gone_can_read(const void *file)
{
    const struct rs_publication *head = file;

    return strncmp(head->layout, RS_PUBLICATION_LAYOUT, sizeof(head->layout)) == 0;
}

/* ---- the directory ---- */

static bool lies_inside(uint64_t offset, uint64_t bytes)
{
    return offset < RS_PUBLISHED_BYTES && bytes <= RS_PUBLISHED_BYTES - offset;
}

static bool find_directory(struct gone *gone)
{
    uint64_t at = atomic_load(&gone->head->directory);
    const struct rs_published_directory *directory = (const void *)(gone->file + at);

    if (at == 0 || at % _Alignof(max_align_t) != 0 || !lies_inside(at, sizeof(*directory)))
        return false;
    gone->stack_count = directory->stack_count;
    gone->counter_count = directory->counter_count;
    gone->from = (const void *)(directory + 1);
    gone->counters = (const void *)(gone->from + gone->stack_count);
    return gone->stack_count <= RS_ARRAY_LENGTH(gone->stacks) &&
           lies_inside(at, sizeof(*directory) + gone->stack_count * sizeof(*gone->from) +
                               (uint64_t)gone->counter_count * sizeof(*gone->counters));
}

static bool is_text(const char *text, size_t room)
{
    return memchr(text, '\0', room) != NULL;
}

static bool is_sound(const struct rs_published_term *term)
{
    uint64_t span = term->count ? (uint64_t)(term->count - 1) * term->stride_bytes + 8 : 8;

    return term->offset % 8 == 0 && term->stride_bytes % 8 == 0 &&
           lies_inside(term->offset, span) && term->offset != 0;
}

static bool is_sound_counter(const struct rs_published_counter *counter)
{
    bool is_good = is_text(counter->resource, sizeof(counter->resource)) &&
                   is_text(counter->name, sizeof(counter->name)) &&
                   counter->kind <= RS_COUNTER_LARGEST && counter->unit <= RS_UNIT_NANOSECONDS &&
                   counter->term_count <= RS_TERMS_MAX;

    for (uint32_t i = 0; is_good && i < counter->term_count; i++)
        is_good = is_sound(&counter->terms[i]);
    return is_good;
}

/* ---- its counters ---- */

static void add_counter(struct gone *gone, struct rs_report *report,
                        const struct rs_published_counter *counter)
{
    enum rs_counter_kind kind = (enum rs_counter_kind)counter->kind;
    struct rs_term terms[RS_TERMS_MAX];
    uint64_t value;

    for (uint32_t i = 0; i < counter->term_count; i++)
        terms[i] = (struct rs_term){gone->file + counter->terms[i].offset, counter->terms[i].count,
                                    counter->terms[i].stride_bytes, counter->terms[i].scale};
    value = rs_terms_value(terms, counter->term_count);
    value = kind == RS_COUNTER_PEAK ? rs_max(value, counter->past) : value + counter->past;
    rs_report_add(report, counter->resource, counter->name, kind,
                  (enum rs_counter_unit)counter->unit, value);
}

/* An account that counted nothing is none. */
static bool is_left_out(const struct rs_report *report, const struct rs_counter *counter)
{
    return strcmp(counter->resource, "account") == 0 &&
           rs_report_value(report, "account", "limit", 0) == 0 &&
           rs_report_value(report, "account", "charged_peak", 0) == 0;
}

static void copy_used(struct rs_report *to, const struct rs_report *from)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct rs_counter *counter = &from->counters[i];
        if (!is_left_out(from, counter))
            rs_report_add(to, counter->resource, counter->name, counter->kind, counter->unit,
                          counter->value);
    }
}

static bool is_sound_stack(const struct rs_published_stack *stack)
{
    return stack->device >= 0 && stack->device < RS_DEVICES_MAX && stack->kind >= 0 &&
           stack->kind < RS_KINDS && is_text(stack->expression, sizeof(stack->expression));
}

static void gather_stack(struct gone *gone, uint32_t index)
{
    struct rs_reported_stack *stack = &gone->stacks[gone->count];
    struct rs_report all = {.count = 0};

    if (!is_sound_stack(&gone->from[index]))
        return;
    for (uint32_t i = 0; i < gone->counter_count; i++)
        if (gone->counters[i].stack == index && is_sound_counter(&gone->counters[i]))
            add_counter(gone, &all, &gone->counters[i]);
    stack->device = gone->from[index].device;
    stack->kind = (enum rs_kind)gone->from[index].kind;
    copy_used(&stack->report, &all);
    rs_report_release(&all);
    gone->count += stack->report.count > 0;
}

/* ---- the report ---- */

static const struct gone *being_written;

static const char *expression_of(const struct rs_reported_stack *stack)
{
    for (uint32_t i = 0; i < being_written->stack_count; i++)
        if (being_written->from[i].device == stack->device &&
            being_written->from[i].kind == (int32_t)stack->kind)
            return being_written->from[i].expression;
    return "";
}

/* Somebody who came later has written there. */
static bool is_anothers(const struct rs_output *output, const struct rs_publication *head)
{
    struct stat status;

    return output->is_regular && atomic_load(&head->report) == RS_REPORT_NOT_BEGUN &&
           fstat(output->file.fd, &status) == 0 && status.st_size > 0 &&
           (status.st_mtim.tv_sec != head->changed.tv_sec ||
            status.st_mtim.tv_nsec != head->changed.tv_nsec);
}

static bool claim(struct rs_output *output, const struct rs_publication *head)
{
    char own[PATH_MAX];
    int result = rs_output_try(output, head->path, 0);

    if (result == 0 && !is_anothers(output, head))
        return true;
    if (result == 0)
        rs_output_release(output);
    if (result != 0 && result != -EBUSY) {
        tool_say("RMM_STATISTICS: %s: %s: no report", head->path, strerror(-result));
        return false;
    }
    if ((size_t)snprintf(own, sizeof(own), "%s.%d", head->path, (int)head->process) >= sizeof(own))
        return false;
    result = rs_output_claim(output, own);
    if (result == 0)
        tool_say("RMM_STATISTICS: %s: another process has it; the report is in %s", head->path,
                 output->path);
    else
        tool_say("RMM_STATISTICS: %s: %s: no report", own, strerror(-result));
    return result == 0;
}

static void write_report(const struct gone *gone)
{
    static struct rs_page page;
    struct rs_page_file file = {.variable = "RMM_STATISTICS", .state = RS_PAGE_FILE_NONE};
    bool has_path = gone->head->path[0] != '\0';

    if (has_path && !claim(&file.output, gone->head))
        return;
    if (has_path)
        file.state = RS_PAGE_FILE_CLAIMED;
    being_written = gone;
    rs_page_begin(&page, &file, has_path ? gone->head->path : NULL);
    rs_report_put(&page, (enum rs_statistics_format)gone->head->format,
                  &(struct rs_report_subject){
                      .process = (int)gone->head->process,
                      .program = gone->head->program,
                      .stacks = gone->stacks,
                      .stack_count = gone->count,
                      .expression = expression_of,
                  });
    rs_page_end(&page);
}

static bool wants_report(const struct rs_publication *head)
{
    return atomic_load(&head->has_report) && atomic_load(&head->report) != RS_REPORT_DONE &&
           head->format > RS_STATISTICS_NONE && is_text(head->path, sizeof(head->path)) &&
           is_text(head->program, sizeof(head->program));
}

void gone_report(const void *file)
{
    struct gone *gone = calloc(1, sizeof(*gone));

    if (!gone)
        return;
    gone->file = file;
    gone->head = file;
    if (wants_report(gone->head) && find_directory(gone)) {
        for (uint32_t i = 0; i < gone->stack_count; i++)
            gather_stack(gone, i);
        if (gone->count > 0)
            write_report(gone);
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(gone->stacks); i++)
        rs_report_release(&gone->stacks[i].report);
    free(gone);
}
