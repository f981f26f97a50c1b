/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/leaks.h"

#include "base/size.h"
#include "context/block_counts.h"
#include "report/plain.h"
#include "report/publish.h"
#include "tool/process.h"
#include "tool/tool.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { SAID_MAX = 8, NAME_BYTES = 64 };

static struct {
    int process;
    bool has_begun; /* its report */
    char program[NAME_BYTES];
    uint64_t blocks, bytes; /* not freed */
} missing[SAID_MAX];
static size_t missing_count;

static void note(int process, const char *script, const struct rs_publication *head,
                 struct publication *page)
{
    size_t at = missing_count++;

    if (at >= SAID_MAX)
        return;
    missing[at].process = process;
    missing[at].has_begun = atomic_load(&head->report) == RS_REPORT_BEGUN;
    missing[at].blocks = missing[at].bytes = 0;
    if (publication_read(page, head))
        for (size_t i = 0; i < page->count; i++) {
            const struct rs_report *report = &page->stacks[i].report;
            missing[at].bytes += rs_report_value(report, RS_PROGRAM, "live", 0);
            missing[at].blocks += rs_report_value(report, RS_PROGRAM, "live_allocations", 0);
        }
    snprintf(missing[at].program, NAME_BYTES, "%.*s", NAME_BYTES - 1,
             *script ? script : page->program);
    rs_plain_make(missing[at].program); /* the process may have been anything */
}

void run_leaks_look(int process, const char *script, const void *file)
{
    const struct rs_publication *head = file;
    struct publication *page;

    if (!(atomic_load(&head->has_report) & RS_PUBLISHED_LEAKS) ||
        atomic_load(&head->report) == RS_REPORT_DONE)
        return;
    page = calloc(1, sizeof(*page));
    if (!page)
        return;
    note(process, script, head, page);
    publication_release(page);
    free(page);
}

/* How the program ended is known; how a process that it started ended is not. */
static void put_why(size_t at, pid_t program, int status, char *why, size_t room)
{
    bool is_program = missing[at].process == program;

    if (is_program && WIFSIGNALED(status))
        snprintf(why, room, "it was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (missing[at].has_begun)
        snprintf(why, room, "it ended while writing the report");
    else
        snprintf(why, room, "it ended by %s, without its exit handlers",
                 is_program ? "_exit or exec" : "a signal, _exit or exec");
}

void run_leaks_say(pid_t program, int status)
{
    char why[96], left[96], bytes[RS_SIZE_TEXT_BYTES];

    for (size_t i = 0; i < missing_count && i < SAID_MAX; i++) {
        put_why(i, program, status, why, sizeof(why));
        if (missing[i].blocks)
            snprintf(left, sizeof(left), "%s in %llu %s not freed",
                     rs_size_format_short(missing[i].bytes, bytes),
                     (unsigned long long)missing[i].blocks,
                     missing[i].blocks == 1 ? "block was" : "blocks were");
        tool_say("no leak report of %s (pid %d): %s; %s", missing[i].program, missing[i].process,
                 why, missing[i].blocks ? left : "no block was left");
    }
    if (missing_count > SAID_MAX)
        tool_say("and no leak report of %zu more", missing_count - SAID_MAX);
}

void run_leaks_forget(void)
{
    missing_count = 0;
}
