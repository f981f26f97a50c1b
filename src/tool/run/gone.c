/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log.h"
#include "context/block_counts.h"
#include "report/counters.h"
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

static void put_report(struct rs_page *page, const struct publication *of,
                       enum rs_statistics_format format)
{
    rs_report_put(page, format,
                  &(struct rs_report_subject){
                      .process = of->process,
                      .program = of->program,
                      .rank = of->rank,
                      .stacks = of->stacks,
                      .stack_count = of->count,
                      .hides_program = true,
                  });
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
