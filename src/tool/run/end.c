/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "base/log.h"
#include "config/config.h"
#include "context/block_counts.h"
#include "report/counters.h"
#include "report/document.h"
#include "report/plain.h"
#include "tool/doctor/doctor.h"
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

enum { SAID_MAX = 8, NAME_BYTES = 64 };

static struct rs_page_file json_file = {.variable = "--json"};

bool run_end_begin(const struct run_options *options)
{
    if (!options->json || strcmp(options->json, "-") == 0)
        return true;
    rs_page_claim(&json_file, options->json);
    return json_file.state == RS_PAGE_FILE_CLAIMED;
}

/* Makes a name safe for a terminal, since a program may set its name to any text. */
static const char *printable(const char *name, char text[NAME_BYTES])
{
    snprintf(text, NAME_BYTES, "%.*s", NAME_BYTES - 1, name);
    rs_plain_make(text);
    return text;
}

/* Returns the name under which a user knows the process: the script, or else the program. */
static const char *shown_name(const struct summary_process *process, char text[NAME_BYTES])
{
    return printable(*process->script ? process->script : process->program, text);
}

/* ---- the report of a process that is gone ---- */

/* True when the file at the report's path is not the one that the process wrote: the process may
 * have had another root directory or mounts. */
static bool is_elsewhere(const struct rs_publication *head, const struct stat *status)
{
    return status->st_dev != (dev_t)head->file_device || status->st_ino != (ino_t)head->file_inode;
}

/* True when the file has contents that are not of this process: another process has written to it
 * since this process claimed it, or it never was this process's file. */
static bool is_anothers(const struct rs_publication *head, const struct stat *status)
{
    return atomic_load(&head->report) == RS_REPORT_NOT_BEGUN && status->st_size > 0 &&
           (is_elsewhere(head, status) || status->st_mtim.tv_sec != head->changed.tv_sec ||
            status->st_mtim.tv_nsec != head->changed.tv_nsec);
}

static bool claim_report(struct rs_output *output, const struct rs_publication *head)
{
    char own[PATH_MAX];
    int result = rs_output_try(output, head->path, 0);
    struct stat status;
    bool is_file = result == 0 && output->is_regular && fstat(output->file.fd, &status) == 0;

    if (result == 0 && !(is_file && is_anothers(head, &status))) {
        if (is_file && is_elsewhere(head, &status))
            tool_say("RMM_STATISTICS: `rmmshim run` writes the report of process %d to %s, but the "
                     "process had opened another file by this name (in a container, or before "
                     "the file was replaced)",
                     (int)head->process, output->path);
        return true;
    }
    if (result == 0)
        rs_output_release(output);
    if (result != 0 && result != -EBUSY) {
        tool_say("RMM_STATISTICS: %s: %s: no report is written", head->path, strerror(-result));
        return false;
    }
    if ((size_t)snprintf(own, sizeof(own), "%s.%d", head->path, (int)head->process) >= sizeof(own))
        return false;
    result = rs_output_claim(output, own);
    if (result == 0)
        tool_say("RMM_STATISTICS: %s: another process writes to this file; the report is in %s",
                 head->path, output->path);
    else
        tool_say("RMM_STATISTICS: %s: %s: no report is written", own, strerror(-result));
    return result == 0;
}

static bool wants_report(const struct rs_publication *head)
{
    return atomic_load(&head->has_report) & RS_PUBLISHED_STATISTICS &&
           atomic_load(&head->report) != RS_REPORT_DONE && head->format > RS_STATISTICS_NONE &&
           memchr(head->path, '\0', sizeof(head->path)) != NULL;
}

/* Writes the report for a process that has not written it itself. A file that another process
 * holds, or has written since, is left alone; the report then goes to PATH.PID. For another user's
 * page nothing is written to a path: the path is in the page, and could name any file that this
 * user may write. */
static void write_left_report(const struct rs_publication *head, const struct publication *of,
                              bool is_anothers)
{
    static struct rs_page page;
    struct rs_page_file file = {.variable = "RMM_STATISTICS", .state = RS_PAGE_FILE_NONE};
    bool has_path = head->path[0] != '\0';

    if (of->count == 0 || !wants_report(head))
        return;
    if (has_path && is_anothers) {
        tool_say("RMM_STATISTICS: no report is written for process %d, because it belongs to "
                 "another user, and has not written one itself",
                 (int)head->process);
        return;
    }
    if (has_path && !claim_report(&file.output, head))
        return;
    if (has_path)
        file.state = RS_PAGE_FILE_CLAIMED;
    rs_page_begin(&page, &file, has_path ? head->path : NULL);
    rs_report_put(&page, (enum rs_statistics_format)head->format,
                  &(struct rs_report_subject){
                      .process = of->process,
                      .program = of->program,
                      .rank = of->rank,
                      .stacks = of->stacks,
                      .stack_count = of->count,
                      .hides_program = true,
                  });
    rs_page_end(&page);
}

/* ---- what a process that is gone left unsaid ---- */

/* Returns a copy of the text; NULL if there is none, the process was killed while it wrote it, or
 * there is no memory. */
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
    rs_plain_make_lines(text); /* any program may have written this text */
    return text;
}

/* Returns a variable of this process, whose environment the program inherits. */
static const char *own_variable(void *data, const char *name)
{
    (void)data;
    return getenv(name);
}

/* Notes what the process could not report: the report of a refusal, a missing leak report, and
 * advice. */
static void note_unsaid(struct summary_process *process, const struct publication *page)
{
    const struct rs_publication *head = (const void *)page->file;

    process->refusal = copy_text(&head->refusal);
    process->lacks_leak_report = atomic_load(&head->has_report) & RS_PUBLISHED_LEAKS &&
                                 atomic_load(&head->report) != RS_REPORT_DONE;
    process->has_begun_report = atomic_load(&head->report) == RS_REPORT_BEGUN;
    process->advice_count = advice_of(page, head, own_variable, NULL, process->advices);
}

/* ---- what a process did ---- */

/* Returns a device's entry. The stacks of a device follow each other, as rs_gather sorts them. */
static struct summary_device *summary_device_of(struct summary_process *process, int number)
{
    struct summary_device *next = &process->devices[process->device_count];

    if (process->device_count && next[-1].device == number)
        return next - 1;
    process->device_count++;
    next->device = number;
    return next;
}

/* Adds a stack's numbers to its device.  The counters of the device's account are among those of
 * one of its stacks. */
static void add_stack_to_device(struct summary_device *device,
                                const struct rs_reported_stack *stack,
                                const struct rs_published_stack *from)
{
    struct rs_usage usage = rs_usage_of(&stack->report);

    device->limit_bytes = rs_max(device->limit_bytes, usage.limit);
    device->refused += usage.refused;
    device->internal_refusals += usage.internal_refusals;
    device->allocations += usage.allocations;
    device->unfreed_bytes += rs_report_value(&stack->report, RS_PROGRAM, "live", 0);
    device->unfreed_blocks += usage.live_allocations;
    device->waited_ns += rs_report_value(&stack->report, "reuse", "waited", 0);
    if (stack->kind != RS_KIND_PINNED) {
        device->used_peak_bytes += usage.used_peak;
        device->spilled_peak_bytes += usage.spilled_peak;
        if (stack->kind == RS_KIND_DEVICE) /* the account includes managed memory */
            device->held_peak_bytes = usage.held_peak;
    }
    if (from)
        device->total_bytes = rs_max(device->total_bytes, from->device_total_bytes);
}

/* Adds the numbers of a page.  A page without counters, whose process allocated nothing, adds no
 * device.  Returns false without memory. */
static bool add_page_to_process(struct summary_process *process, const struct publication *page)
{
    memcpy(process->program, page->program, sizeof(process->program));
    memcpy(process->rank, page->rank, sizeof(process->rank));
    if (page->count == 0)
        return true;
    process->devices = calloc(page->count, sizeof(*process->devices));
    for (size_t i = 0; process->devices && i < page->count; i++)
        add_stack_to_device(summary_device_of(process, page->stacks[i].device), &page->stacks[i],
                            publication_stack(page, &page->stacks[i]));
    return process->devices;
}

/* Reads the page once, for the summary, the report and the advice. */
void summary_add(struct summary *summary, const struct summary_process *known, bool is_below,
                 const void *file)
{
    static struct publication page;
    struct summary_process process = *known;
    struct summary_process *more =
        realloc(summary->processes, (summary->count + 1) * sizeof(*more));
    bool is_gone = known->has_ended && !is_below;

    if (more)
        summary->processes = more;
    (void)publication_read(&page, file);
    if (is_gone)
        write_left_report(file, &page, known->is_anothers);
    if (more && add_page_to_process(&process, &page)) {
        if (is_gone)
            note_unsaid(&process, &page);
        summary->processes[summary->count++] = process;
    } else {
        summary->is_short = true;
    }
    summary->is_short |= page.is_short;
    publication_release(&page);
}

void summary_clear(struct summary *summary)
{
    for (size_t i = 0; i < summary->count; i++) {
        free(summary->processes[i].devices);
        free(summary->processes[i].refusal);
    }
    free(summary->processes);
    free(summary->unserved);
    *summary = (struct summary){.count = 0};
}

/* ---- what happened ---- */

static void put_summary_device(struct rs_node *devices, const struct summary_device *from,
                               bool is_said)
{
    struct rs_node *device = rs_node_object(devices, NULL);

    rs_node_count(device, "device", (uint64_t)from->device);
    rs_node_bytes(device, "used_peak_bytes", from->used_peak_bytes);
    rs_node_bytes(device, "held_peak_bytes", from->held_peak_bytes);
    rs_node_bytes(device, "spilled_peak_bytes", from->spilled_peak_bytes);
    rs_node_bytes(device, "limit_bytes", from->limit_bytes);
    rs_node_count(device, "refused", from->refused);
    rs_node_count(device, "internal_refusals", from->internal_refusals);
    rs_node_count(device, "allocations", from->allocations);
    rs_node_nanoseconds(device, "waited_nanoseconds", from->waited_ns);
    rs_node_bytes(device, "unfreed_bytes", from->unfreed_bytes);
    rs_node_count(device, "unfreed_blocks", from->unfreed_blocks);
    if (is_said)
        device->line =
            "rmmshim: [{script}][{script!}{program}] (pid {pid}), GPU {device}: [used "
            "up to {used_peak_bytes}]"
            "[{used_peak_bytes!}used nothing], held up to {held_peak_bytes}"
            "[ of its {limit_bytes} limit][, spilled up to {spilled_peak_bytes} to the fallback]; "
            "[{refused} out-of-memory error{refused||s}]"
            "[{refused!}no out-of-memory errors]\n";
}

/* Returns the largest peak of used memory that the process had on any device. */
static uint64_t used_peak_of(const struct summary_process *process)
{
    uint64_t peak = 0;

    for (size_t i = 0; i < process->device_count; i++)
        peak = rs_max(peak, process->devices[i].used_peak_bytes);
    return peak;
}

static int by_peak(const void *one, const void *other)
{
    const struct summary_process *a = one, *b = other;
    uint64_t peak = used_peak_of(a), other_peak = used_peak_of(b);

    if (peak != other_peak)
        return peak < other_peak ? 1 : -1;
    return (a->number > b->number) - (a->number < b->number);
}

/* Adds the processes, sorted by the memory that they used, the largest first. */
static void add_processes(struct rs_node *root, const struct summary *summary)
{
    struct rs_node *processes = rs_node_list(root, "processes");

    if (summary->count)
        qsort(summary->processes, summary->count, sizeof(*summary->processes), by_peak);
    for (size_t i = 0; i < summary->count; i++) {
        const struct summary_process *from = &summary->processes[i];
        struct rs_node *process = rs_node_object(processes, NULL), *devices;
        rs_node_count(process, "pid", (uint64_t)from->number);
        rs_node_text(process, "program", from->program);
        rs_node_text(process, "script", from->script);
        rs_node_text(process, "rank", from->rank);
        rs_node_flag(process, "ended", from->has_ended);
        devices = rs_node_list(process, "devices");
        for (size_t j = 0; j < from->device_count; j++)
            put_summary_device(devices, &from->devices[j], i < SAID_MAX);
    }
    if (summary->count > SAID_MAX)
        processes->end = rs_document_format(root->document, "rmmshim: and %zu more process%s\n",
                                            summary->count - SAID_MAX,
                                            summary->count == SAID_MAX + 1 ? "" : "es");
}

#define PROCESS    "[{script}][{script!}{program}] (pid {pid}): {reason}"
#define NOT_SERVED "rmmshim: NOT served or limited: " PROCESS

static const struct {
    const char *text, *line; /* of the document and of the terminal */
} reasons[] = {
    [UNSERVED_STATIC] = {"it is statically linked",
                         NOT_SERVED " -> link it dynamically (without -static)\n"},
    [UNSERVED_NO_PRELOAD] = {"it runs without librmmshim.so",
                             NOT_SERVED " -> pass LD_PRELOAD and the RMM_ variables on to it\n"},
    [UNSERVED_NO_CALL] = {"none of its allocations reached rmmshim",
                          NOT_SERVED " -> when it runs again, `rmmshim doctor PID` says why\n"},
    [UNSERVED_BEHIND] = {"its LD_PRELOAD lists the driver (libcuda) before rmmshim",
                         NOT_SERVED " -> name librmmshim.so first in LD_PRELOAD\n"},
    [UNSERVED_NOT_HELD] = {"rmmshim served it, but its counters did not reach this command",
                           "rmmshim: NOT counted: " PROCESS
                           " (it may lack the variable RMMSHIM_JOB, or run in another network "
                           "namespace)\n"},
};

static void add_unserved(struct rs_node *root, const struct summary *summary)
{
    struct rs_node *unserved = rs_node_list(root, "unserved");

    for (size_t i = 0; i < summary->unserved_count; i++) {
        struct rs_node *process = rs_node_object(unserved, NULL);
        rs_node_count(process, "pid", (uint64_t)summary->unserved[i].number);
        rs_node_text(process, "program", summary->unserved[i].program);
        rs_node_text(process, "script", summary->unserved[i].script);
        rs_node_word(process, "reason", reasons[summary->unserved[i].reason].text);
        if (i < SAID_MAX)
            process->line = reasons[summary->unserved[i].reason].line;
    }
    if (summary->unserved_count > SAID_MAX)
        unserved->end = rs_document_format(
            root->document,
            "rmmshim: NOT served, or not counted: %zu more process%s that used CUDA\n",
            summary->unserved_count - SAID_MAX,
            summary->unserved_count == SAID_MAX + 1 ? "" : "es");
}

/* Returns why no process used CUDA through the library, if that is known.  A misspelt name in
 * RMM_ONLY only shows here, since any name is allowed. */
static const char *why_none(struct rs_document *document, const struct run_options *options)
{
    const char *only = rs_variables[RS_VARIABLE_ONLY].option.name, *patterns = getenv(only);
    char shown[NAME_BYTES];

    if (options->sets_nothing)
        return "rmmshim: nothing was served, since no setting asks for a pool, a limit or a "
               "report (`rmmshim run --help` lists the settings)\n";
    if (!driver_can_be_loaded())
        return "rmmshim: {program} did not use CUDA: libcuda.so.1, NVIDIA's driver, cannot be "
               "loaded here\n";
    if (patterns && *patterns)
        return rs_document_format(document,
                                  "rmmshim: nothing was served: %s=%s%s names no program that used "
                                  "CUDA\n",
                                  only, printable(patterns, shown),
                                  strlen(patterns) < NAME_BYTES ? "" : "...");
    return "rmmshim: {program} did not use CUDA, so rmmshim had nothing to do\n";
}

/* Why counters may not reach this command. */
static const char missed_why[] =
    "usual causes: another network namespace, another version of rmmshim, or a low `ulimit -n`";

/* Returns the line that says why processes are missing from the summary, or why it has none at all;
 * NULL if each process that used CUDA has a line. */
static const char *why_incomplete(struct rs_document *document, const struct run_options *options,
                                  const struct summary *summary)
{
    if (summary->missed)
        return rs_document_format(document,
                                  "rmmshim: NOT counted: %zu process%s that rmmshim served, but "
                                  "whose counters did not reach this command (%s)\n",
                                  summary->missed, summary->missed == 1 ? "" : "es", missed_why);
    if (summary->is_short)
        return "rmmshim: NOT counted: some processes, because `rmmshim run` ran out of host "
               "memory or file descriptors\n";
    return summary->count || summary->unserved_count ? NULL : why_none(document, options);
}

static void fill_summary(struct rs_document *document, const struct run_options *options,
                         const char *program, const struct run_outcome *outcome)
{
    const struct summary *summary = &outcome->summary;
    const struct parent_result *result = &outcome->result;
    struct rs_node *root = &document->root;

    rs_document_begin(document);
    rs_node_count(root, "schema", 1);
    rs_node_count(root, "pid", (uint64_t)result->program);
    rs_node_text(root, "program", program);
    rs_node_count(root, "exit_status", (uint64_t)parent_exit_code(result));
    rs_node_count(root, "signal",
                  (uint64_t)(WIFSIGNALED(result->status) ? WTERMSIG(result->status) : 0));
    if (outcome->runs) {
        rs_node_bytes(root, "smallest_limit_bytes", outcome->smallest_limit_bytes);
        rs_node_count(root, "runs", outcome->runs);
    }
    add_processes(root, summary);
    add_unserved(root, summary);
    rs_node_flag(root, "incomplete",
                 summary->is_short || summary->missed || summary->unserved_count)
        ->line = why_incomplete(document, options, summary);
}

static void tell(const struct run_options *options, const char *program,
                 const struct run_outcome *outcome)
{
    static struct rs_document document;
    static struct rs_page page;
    static struct rs_page_file terminal;
    bool has_path = options->json && strcmp(options->json, "-") != 0;

    fill_summary(&document, options, program, outcome);
    if (!options->is_quiet && !outcome->runs) {
        rs_page_begin(&page, &terminal, NULL);
        rs_document_put_text(&page, &document.root);
        rs_page_flush(&page);
    }
    if (options->json) {
        rs_page_begin(&page, &json_file, has_path ? options->json : NULL);
        rs_document_put_json(&page, &document.root, false);
        rs_page_end(&page);
    }
    rs_document_release(&document);
}

/* ---- what processes that are gone left unsaid ---- */

static void say_refusals(const struct summary *summary)
{
    size_t count = 0;

    for (size_t i = 0; i < summary->count; i++) {
        const char *text = summary->processes[i].refusal;
        if (text && ++count <= SAID_MAX)
            (void)rs_write_all(STDERR_FILENO, text, strlen(text));
    }
    if (count > SAID_MAX)
        tool_say("%zu more processes ran out of memory", count - SAID_MAX);
}

/* Writes how a process ended, as far as it is known: the signal is known only of the program
 * itself, and not of the processes that it started. */
static void put_why(const struct summary_process *process, const struct parent_result *result,
                    char *why, size_t room)
{
    bool is_program = process->number == result->program;
    int status = result->status;

    if (is_program && WIFSIGNALED(status))
        snprintf(why, room, "it was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (process->has_begun_report)
        snprintf(why, room, "it ended before the report was complete");
    else
        snprintf(why, room, "it ended by %s, without running its exit handlers",
                 is_program ? "_exit or exec" : "a signal, _exit or exec");
}

/* Prints that the leak report of a process is missing: call sites are in the process's own memory,
 * so no other process can write it. */
static void say_no_leak_report(const struct summary_process *process,
                               const struct parent_result *result)
{
    char name[NAME_BYTES], why[96], left[96] = "freed all its blocks";
    uint64_t bytes = 0, blocks = 0;

    for (size_t i = 0; i < process->device_count; i++) {
        bytes += process->devices[i].unfreed_bytes;
        blocks += process->devices[i].unfreed_blocks;
    }
    if (blocks)
        snprintf(left, sizeof(left), "did not free %s in %llu block%s", tool_bytes(bytes),
                 (unsigned long long)blocks, blocks == 1 ? "" : "s");
    put_why(process, result, why, sizeof(why));
    tool_say("%s (pid %d) wrote no leak report, because %s; by its counters, it %s",
             shown_name(process, name), process->number, why, left);
}

static void say_missing_leak_reports(const struct run_outcome *outcome)
{
    size_t count = 0;

    for (size_t i = 0; i < outcome->summary.count; i++)
        if (outcome->summary.processes[i].lacks_leak_report && ++count <= SAID_MAX)
            say_no_leak_report(&outcome->summary.processes[i], &outcome->result);
    if (count > SAID_MAX)
        tool_say("%zu more process%s wrote no leak report either", count - SAID_MAX,
                 count - SAID_MAX == 1 ? "" : "es");
}

static void say_advice(const struct summary *summary)
{
    char name[NAME_BYTES];
    size_t count = 0;

    for (size_t i = 0; i < summary->count && count < SAID_MAX; i++) {
        const struct summary_process *process = &summary->processes[i];
        for (size_t j = 0; j < process->advice_count; j++)
            tool_say("%s (pid %d): %s -> %s", shown_name(process, name), process->number,
                     process->advices[j].text, process->advices[j].step);
        count += process->advice_count > 0;
    }
}

/* ---- checks ---- */

/* Returns the options that ask for checks. */
static const char *checks_of(const struct run_options *options)
{
    return !options->has_fail_over  ? "--fail-on-leak"
           : options->fails_on_leak ? "--fail-over and --fail-on-leak"
                                    : "--fail-over";
}

/* Checks --fail-over for a process on a device.  True if the process used more, or if that is not
 * known. */
static bool used_more(const struct run_options *options, const struct summary_process *process,
                      const struct summary_device *device, bool is_said)
{
    size_t most = rs_size_resolve(options->over, device->total_bytes, device->total_bytes);
    bool is_known = options->over.kind == RS_SIZE_BYTES || device->total_bytes;
    char name[NAME_BYTES];

    if (!options->has_fail_over || (is_known && device->used_peak_bytes <= most))
        return false;
    if (is_said && !is_known)
        tool_say("--fail-over %s cannot be checked, which counts as failed: the memory size of GPU "
                 "%d is "
                 "not known; give --fail-over a size in bytes, as in 8GiB",
                 options->over_text, device->device);
    else if (is_said)
        tool_say("--fail-over %s: %s (pid %d) used up to %s of GPU %d", options->over_text,
                 shown_name(process, name), process->number, tool_bytes(device->used_peak_bytes),
                 device->device);
    return true;
}

static bool leaked(const struct run_options *options, const struct summary_process *process,
                   const struct summary_device *device, bool is_said)
{
    char name[NAME_BYTES];
    bool has_leaked = options->fails_on_leak && process->has_ended && device->unfreed_blocks;

    if (has_leaked && is_said)
        tool_say("--fail-on-leak: %s (pid %d) ended with %llu %s on GPU %d not freed: %s",
                 shown_name(process, name), process->number,
                 (unsigned long long)device->unfreed_blocks,
                 device->unfreed_blocks == 1 ? "block" : "blocks", device->device,
                 tool_bytes(device->unfreed_bytes));
    return has_leaked;
}

/* True, after a line, when the checks cannot count as passed: some processes were not counted, or
 * none used CUDA through the library. */
static bool has_not_seen_all(const struct run_options *options, const struct summary *summary)
{
    char why[256];

    if (summary->missed)
        snprintf(why, sizeof(why),
                 "the counters of %zu %s that rmmshim served did not reach this command (%s)",
                 summary->missed, summary->missed == 1 ? "process" : "processes", missed_why);
    else if (summary->unserved_count)
        snprintf(why, sizeof(why), "rmmshim did not serve or did not count %zu %s that used CUDA",
                 summary->unserved_count, summary->unserved_count == 1 ? "process" : "processes");
    else if (summary->is_short)
        snprintf(why, sizeof(why),
                 "some processes were not counted, because `rmmshim run` ran out of host memory "
                 "or file descriptors");
    else if (!summary->count)
        snprintf(why, sizeof(why),
                 "no process used CUDA through rmmshim; `rmmshim doctor PROGRAM` may say why");
    else
        return false;
    tool_say("%s cannot be checked, which counts as failed: %s", checks_of(options), why);
    return true;
}

static bool checks_failed(const struct run_options *options, const struct summary *summary)
{
    size_t found = 0;

    if (!options->has_fail_over && !options->fails_on_leak)
        return false;
    for (size_t i = 0; i < summary->count; i++)
        for (size_t j = 0; j < summary->processes[i].device_count; j++) {
            const struct summary_process *process = &summary->processes[i];
            found += used_more(options, process, &process->devices[j], found < SAID_MAX);
            found += leaked(options, process, &process->devices[j], found < SAID_MAX);
        }
    if (found > SAID_MAX)
        tool_say("%s: %zu more failure%s, not listed", checks_of(options), found - SAID_MAX,
                 found - SAID_MAX == 1 ? "" : "s");
    return has_not_seen_all(options, summary) || found;
}

int run_end(const struct run_options *options, char *const *words, struct run_outcome *outcome)
{
    int code = parent_exit_code(&outcome->result);

    if (code != 0)
        say_refusals(&outcome->summary);
    say_missing_leak_reports(outcome);
    tell(options, words[0], outcome);
    if (!options->is_quiet && !outcome->runs)
        say_advice(&outcome->summary);
    return checks_failed(options, &outcome->summary) && code == 0 ? TOOL_FINDING : code;
}
