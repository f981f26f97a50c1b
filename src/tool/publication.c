/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/publication.h"

#include "base/check.h"
#include "context/block_counts.h"
#include "report/plain.h"
#include "report/published_checks.h"
#include "shared/published.h"

#include <stdlib.h>
#include <string.h>

enum {
    TRIES = 16, /* a process whose directory changes as often while it is read is left out */

    /* Of a page that makes sense none comes near: who reads one that does not is done soon. */
    STACK_COUNTERS_MAX = 1024,
    PAGE_COUNTERS_MAX = 4096,
    FIELDS_MAX = 4 << 20,
};

bool publication_can_read(const void *file)
{
    return rs_published_check_layout(file);
}

bool publication_has_directory(const void *file)
{
    const struct rs_publication *head = file;

    return atomic_load(&head->directory) != 0;
}

/* ---- the directory ---- */

/* A copy of the directory at `at`, since its process, which may have been anything, may write to
 * the file while it is read.  NULL where there is none. */
static struct rs_published_directory *copy_directory(const char *file, uint64_t at)
{
    struct rs_published_directory counts, *copy = NULL;
    uint64_t bytes;

    if (!rs_published_check_place(at))
        return NULL;
    memcpy(&counts, file + at, sizeof(counts));
    bytes = rs_published_check_directory(at, &counts);
    copy = bytes ? malloc(bytes) : NULL;
    if (copy) {
        memcpy(copy, file + at, bytes);
        *copy = counts;
    }
    return copy;
}

/* The process writes a new directory when stacks come or go, and the last but one is written over:
 * a copy counts when the directory is still the same after it. */
static bool take_directory(struct publication *page, const struct rs_publication *head)
{
    struct rs_published_stack *stacks;

    for (int i = 0; i < TRIES; i++) {
        uint64_t at = atomic_load(&head->directory);
        page->directory = copy_directory(page->file, at);
        if (!page->directory || atomic_load(&head->directory) == at)
            break;
        free(page->directory);
        page->directory = NULL;
    }
    if (!page->directory)
        return false;
    stacks = (void *)(page->directory + 1);
    for (uint32_t i = 0; i < page->directory->stack_count; i++) {
        stacks[i].expression[sizeof(stacks[i].expression) - 1] = '\0';
        rs_plain_make(stacks[i].expression);
    }
    page->from = stacks;
    page->counters = (const void *)(page->from + page->directory->stack_count);
    return true;
}

/* ---- its counters ---- */

/* Counts the fields that are to be read.  False where they have become too many. */
static bool take_fields(struct publication *page, const struct rs_published_counter *counter)
{
    for (uint32_t i = 0; i < counter->term_count; i++) {
        if (counter->terms[i].count > FIELDS_MAX - page->fields_read)
            return false;
        page->fields_read += counter->terms[i].count;
    }
    return true;
}

static void add_counter(struct publication *page, struct rs_report *report,
                        const struct rs_published_counter *counter)
{
    enum rs_counter_kind kind = (enum rs_counter_kind)counter->kind;
    struct rs_term terms[RS_TERMS_MAX];
    uint64_t value;

    for (uint32_t i = 0; i < counter->term_count; i++)
        terms[i] = (struct rs_term){page->file + counter->terms[i].offset, counter->terms[i].count,
                                    counter->terms[i].stride_bytes, counter->terms[i].scale};
    value = rs_terms_value(terms, counter->term_count);
    value = kind == RS_COUNTER_PEAK ? rs_max(value, counter->past) : value + counter->past;
    rs_report_add(report, counter->resource, counter->name, kind,
                  (enum rs_counter_unit)counter->unit, value);
}

static bool is_of(const struct rs_counter *counter, const char *resource)
{
    return strcmp(counter->resource, resource) == 0;
}

/* An account that counted nothing is none.  The program's counters are there for kinds of memory,
 * too, that have no stack. */
static bool is_unused(const struct rs_report *report, const struct rs_counter *counter,
                      bool has_stack)
{
    if (is_of(counter, "account"))
        return rs_report_value(report, "account", "limit", 0) == 0 &&
               rs_report_value(report, "account", "charged_peak", 0) == 0;
    return is_of(counter, RS_PROGRAM) && !has_stack &&
           rs_report_value(report, RS_PROGRAM, "allocations", 0) == 0 &&
           rs_report_value(report, RS_PROGRAM, "refused", 0) == 0;
}

static bool has_resources(const struct rs_report *report)
{
    for (size_t i = 0; i < report->count; i++)
        if (!is_of(&report->counters[i], "account") && !is_of(&report->counters[i], RS_PROGRAM))
            return true;
    return false;
}

static void copy_used(struct rs_report *to, const struct rs_report *from)
{
    bool has_stack = has_resources(from);

    for (size_t i = 0; i < from->count; i++) {
        const struct rs_counter *counter = &from->counters[i];
        if (!is_unused(from, counter, has_stack))
            rs_report_add(to, counter->resource, counter->name, counter->kind, counter->unit,
                          counter->value);
    }
}

static bool is_there(const struct publication *page, const struct rs_published_stack *stack)
{
    for (size_t i = 0; i < page->count; i++)
        if (page->stacks[i].device == stack->device && (int32_t)page->stacks[i].kind == stack->kind)
            return true;
    return false;
}

static size_t counters_taken(const struct publication *page)
{
    size_t count = 0;

    for (size_t i = 0; i < page->count; i++)
        count += page->stacks[i].report.count;
    return count;
}

static void gather_stack(struct publication *page, uint32_t index)
{
    size_t taken = counters_taken(page), most = STACK_COUNTERS_MAX;

    struct rs_reported_stack *stack = &page->stacks[page->count];
    struct rs_report all = {.count = 0};

    if (!rs_published_check_stack(&page->from[index]) || is_there(page, &page->from[index]))
        return;
    most = rs_min(most, PAGE_COUNTERS_MAX - rs_min(taken, PAGE_COUNTERS_MAX));
    for (uint32_t i = 0; i < page->directory->counter_count; i++) {
        const struct rs_published_counter *counter = &page->counters[i];
        if (counter->stack == index && all.count < most && rs_published_check_counter(counter) &&
            take_fields(page, counter))
            add_counter(page, &all, counter);
    }
    stack->device = page->from[index].device;
    stack->kind = (enum rs_kind)page->from[index].kind;
    copy_used(&stack->report, &all);
    rs_report_release(&all);
    page->count += stack->report.count > 0;
}

static void copy_head(struct publication *page, const struct rs_publication *head)
{
    memcpy(page->program, head->program, sizeof(page->program) - 1);
    memcpy(page->rank, head->rank, sizeof(page->rank) - 1);
    rs_plain_make(page->program);
    rs_plain_make(page->rank);
    page->began_seconds = head->began_seconds;
    page->process = (int)head->process;
}

bool publication_read(struct publication *page, const void *file)
{
    const struct rs_publication *head = file;

    *page = (struct publication){.file = file};
    copy_head(page, head);
    if (!take_directory(page, head))
        return false;
    for (uint32_t i = 0; i < page->directory->stack_count; i++)
        gather_stack(page, i);
    return page->count > 0;
}

const struct rs_published_stack *publication_stack(const struct publication *page,
                                                   const struct rs_reported_stack *stack)
{
    for (uint32_t i = 0; i < page->directory->stack_count; i++)
        if (page->from[i].device == stack->device && page->from[i].kind == (int32_t)stack->kind)
            return &page->from[i];
    return NULL;
}

void publication_release(struct publication *page)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(page->stacks); i++)
        rs_report_release(&page->stacks[i].report);
    free(page->directory);
    page->directory = NULL;
}
