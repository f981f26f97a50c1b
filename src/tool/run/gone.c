/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "context/block_counts.h"
#include "report/format.h"
#include "report/plain.h"
#include "tool/process.h"
#include "tool/run/run.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the report ---- */

static const struct publication *being_written;

static const char *expression_of(const struct rs_reported_stack *stack)
{
    return publication_stack(being_written, stack)->expression;
}

static const struct rs_report *counts_of(const struct rs_reported_stack *stack)
{
    const struct publication *page = being_written;

    for (size_t i = 0; i < page->count; i++)
        if (page->stacks[i].kind == stack->kind && page->stacks[i].device == stack->device)
            return &page->stacks[i].report;
    return &stack->report;
}

/* The process may have had another root directory, or other mounts. */
static bool is_elsewhere(const struct rs_publication *head, const struct stat *status)
{
    return status->st_dev != (dev_t)head->file_device || status->st_ino != (ino_t)head->file_inode;
}

/* Somebody who came later has written there, or it never was the process's. */
static bool is_anothers(const struct rs_publication *head, const struct stat *status)
{
    return atomic_load(&head->report) == RS_REPORT_NOT_BEGUN && status->st_size > 0 &&
           (is_elsewhere(head, status) || status->st_mtim.tv_sec != head->changed.tv_sec ||
            status->st_mtim.tv_nsec != head->changed.tv_nsec);
}

static bool claim(struct rs_output *output, const struct rs_publication *head)
{
    char own[PATH_MAX];
    int result = rs_output_try(output, head->path, 0);
    struct stat status;
    bool is_file = result == 0 && output->is_regular && fstat(output->file.fd, &status) == 0;

    if (result == 0 && !(is_file && is_anothers(head, &status))) {
        if (is_file && is_elsewhere(head, &status))
            tool_say("RMM_STATISTICS: the report of process %d is in %s as this command sees it, "
                     "which is another file than the process's",
                     (int)head->process, output->path);
        return true;
    }
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
        tool_say("RMM_STATISTICS: %s: it is another process's file; the report is in %s",
                 head->path, output->path);
    else
        tool_say("RMM_STATISTICS: %s: %s: no report", own, strerror(-result));
    return result == 0;
}

/* A report of the process's own has of the program's counters what it was refused. */
static void copy_reported(struct rs_report *to, const struct rs_report *from)
{
    for (size_t i = 0; i < from->count; i++) {
        const struct rs_counter *counter = &from->counters[i];
        if (strcmp(counter->resource, RS_PROGRAM) != 0 || strcmp(counter->name, "refused") == 0)
            rs_report_add(to, counter->resource, counter->name, counter->kind, counter->unit,
                          counter->value);
    }
}

static size_t copy_stacks(struct rs_reported_stack *to, const struct publication *page)
{
    size_t count = 0;

    for (size_t i = 0; i < page->count; i++) {
        to[count] = (struct rs_reported_stack){.kind = page->stacks[i].kind,
                                               .device = page->stacks[i].device};
        copy_reported(&to[count].report, &page->stacks[i].report);
        count += to[count].report.count > 0;
    }
    return count;
}

static void put_report(struct rs_page *page, const struct publication *of,
                       enum rs_statistics_format format)
{
    static struct rs_reported_stack stacks[RS_PUBLISHED_STACKS_MAX];
    size_t count = copy_stacks(stacks, of);

    being_written = of;
    if (count > 0)
        rs_report_put(page, format,
                      &(struct rs_report_subject){
                          .process = of->process,
                          .program = of->program,
                          .rank = of->rank,
                          .stacks = stacks,
                          .stack_count = count,
                          .expression = expression_of,
                          .counts = counts_of,
                      });
    for (size_t i = 0; i < count; i++)
        rs_report_release(&stacks[i].report);
}

static void write_report(const struct rs_publication *head, const struct publication *of)
{
    static struct rs_page page;
    struct rs_page_file file = {.variable = "RMM_STATISTICS", .state = RS_PAGE_FILE_NONE};
    bool has_path = head->path[0] != '\0';

    if (has_path && !claim(&file.output, head))
        return;
    if (has_path)
        file.state = RS_PAGE_FILE_CLAIMED;
    rs_page_begin(&page, &file, has_path ? head->path : NULL);
    put_report(&page, of, (enum rs_statistics_format)head->format);
    rs_page_end(&page);
}

static bool wants_report(const struct rs_publication *head)
{
    return atomic_load(&head->has_report) & RS_PUBLISHED_STATISTICS &&
           atomic_load(&head->report) != RS_REPORT_DONE && head->format > RS_STATISTICS_NONE &&
           memchr(head->path, '\0', sizeof(head->path)) != NULL;
}

void gone_report(const struct publication *page)
{
    const struct rs_publication *head = (const void *)page->file;

    if (page->count > 0 && wants_report(head))
        write_report(head, page);
}

/* ---- what it left unsaid ---- */

/* A copy of the text, or NULL.  A process that was killed while it wrote has none. */
static char *copy_text(const struct rs_published_refusal *refusal)
{
    uint32_t sequence = atomic_load_explicit(&refusal->sequence, memory_order_acquire);
    char *text;

    if (sequence == 0 || sequence % 2)
        return NULL;
    text = strndup(refusal->text, sizeof(refusal->text) - 1);
    if (!text)
        return NULL;
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&refusal->sequence, memory_order_relaxed) != sequence) {
        free(text);
        return NULL;
    }
    rs_plain_make_lines(text); /* the process may have been anything */
    return text;
}

/* The program has those of this process. */
static const char *variable(void *data, const char *name)
{
    (void)data;
    return getenv(name);
}

void gone_note(struct summary_process *process, const struct publication *page)
{
    const struct rs_publication *head = (const void *)page->file;

    process->refusal = copy_text(&head->refusal);
    process->lacks_leak_report = atomic_load(&head->has_report) & RS_PUBLISHED_LEAKS &&
                                 atomic_load(&head->report) != RS_REPORT_DONE;
    process->has_begun_report = atomic_load(&head->report) == RS_REPORT_BEGUN;
    process->advice_count = advice_of(page, head, variable, NULL, process->advices);
}
