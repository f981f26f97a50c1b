/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/end.h"

#include "config/variables.h"
#include "report/document.h"
#include "report/plain.h"
#include "tool/doctor/driver.h"
#include "tool/run/advice.h"
#include "tool/run/gone.h"
#include "tool/run/leaks.h"
#include "tool/run/summary.h"
#include "tool/tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAID_MAX = 8, NAME_BYTES = 64 };

static struct rs_page_file json_file = {.variable = "--json"};
static bool nothing_set;

bool run_end_begin(const struct run_options *options)
{
    if (!options->json || strcmp(options->json, "-") == 0)
        return true;
    rs_page_claim(&json_file, options->json);
    return json_file.state == RS_PAGE_FILE_CLAIMED;
}

void run_end_note_settings(bool anything_set)
{
    nothing_set = !anything_set;
}

/* A program chooses its name: a terminal is not to obey it. */
static const char *printable(const char *name, char text[NAME_BYTES])
{
    snprintf(text, NAME_BYTES, "%.*s", NAME_BYTES - 1, name);
    rs_plain_make(text);
    return text;
}

/* ---- what happened ---- */

static void add_device(struct rs_node *devices, const struct summary_device *from, bool is_said)
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
        device->line = "rmmshim: [{script}][{script!}{program}] (pid {pid}), GPU {device}: [used "
                       "up to {used_peak_bytes}]"
                       "[{used_peak_bytes!}used nothing], held up to {held_peak_bytes}"
                       "[ of its {limit_bytes} limit][, spilled up to {spilled_peak_bytes}]; "
                       "[{refused} out-of-memory error{refused||s}]"
                       "[{refused!}no out-of-memory errors]\n";
}

static int by_peak(const void *one, const void *other)
{
    const struct summary_process *a = one, *b = other;
    uint64_t peak = summary_used_peak(a), other_peak = summary_used_peak(b);

    if (peak != other_peak)
        return peak < other_peak ? 1 : -1;
    return (a->number > b->number) - (a->number < b->number);
}

/* Those that used the most come first. */
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
            add_device(devices, &from->devices[j], i < SAID_MAX);
    }
    if (summary->count > SAID_MAX)
        processes->end = rs_document_format(root->document, "rmmshim: and %zu more process%s\n",
                                            summary->count - SAID_MAX,
                                            summary->count == SAID_MAX + 1 ? "" : "es");
}

static void add_unserved(struct rs_node *root, const struct summary *summary)
{
    struct rs_node *unserved = rs_node_list(root, "unserved");

    for (size_t i = 0; i < summary->unserved_count; i++) {
        struct rs_node *process = rs_node_object(unserved, NULL);
        rs_node_count(process, "pid", (uint64_t)summary->unserved[i].number);
        rs_node_text(process, "program", summary->unserved[i].program);
        rs_node_text(process, "script", summary->unserved[i].script);
        rs_node_word(process, "reason", unserved_reason_text(summary->unserved[i].reason));
        if (i < SAID_MAX)
            process->line = "rmmshim: NOT covered: [{script}][{script!}{program}] (pid {pid}): "
                            "{reason}\n";
    }
    if (summary->unserved_count > SAID_MAX)
        unserved->end =
            rs_document_format(root->document, "rmmshim: NOT covered: %zu more processes\n",
                               summary->unserved_count - SAID_MAX);
}

/* Why no process used CUDA through the library, if that is known.  RMM_ONLY may hold any name, so
 * that a misspelt one shows here alone. */
static const char *why_none(struct rs_document *document)
{
    const char *only = rs_variables[RS_VARIABLE_ONLY].option.name, *patterns = getenv(only);
    char shown[NAME_BYTES];

    if (nothing_set)
        return "rmmshim: nothing was served, since no setting asks for a pool or a limit "
               "('rmmshim run --help' lists the settings)\n";
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

/* Says nothing where all went well: then each process that used CUDA has its lines. */
static const char *why_incomplete(struct rs_document *document, const struct summary *summary)
{
    if (summary->missed)
        return rs_document_format(document,
                                  "rmmshim: NOT counted: %zu process%s that rmmshim served, but "
                                  "whose counters did not reach this command\n",
                                  summary->missed, summary->missed == 1 ? "" : "es");
    if (summary->is_short)
        return "rmmshim: NOT counted: some processes, for lack of memory or file descriptors\n";
    return summary->count || summary->unserved_count ? NULL : why_none(document);
}

static void fill(struct rs_document *document, const char *program,
                 const struct run_outcome *outcome)
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
    rs_node_flag(root, "incomplete", summary_is_incomplete(summary))->line =
        why_incomplete(document, summary);
}

static void tell(const struct run_options *options, const char *program,
                 const struct run_outcome *outcome)
{
    static struct rs_document document;
    static struct rs_page page;
    static struct rs_page_file terminal;
    bool has_path = options->json && strcmp(options->json, "-") != 0;

    fill(&document, program, outcome);
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

/* ---- checks ---- */

static size_t findings; /* of the checks */

static bool is_to_be_said(void)
{
    return ++findings <= SAID_MAX;
}

static bool used_more(const struct run_options *options, const struct summary_process *process,
                      const struct summary_device *device)
{
    size_t most = rs_size_resolve(options->over, device->total_bytes, device->total_bytes);
    char name[NAME_BYTES], used[RS_SIZE_TEXT_BYTES];

    if (!options->has_fail_over)
        return false;
    if (options->over.kind != RS_SIZE_BYTES && !device->total_bytes) {
        tool_say("--fail-over %s: it is not known how much memory GPU %d has", options->over_text,
                 device->device);
        return true;
    }
    if (device->used_peak_bytes <= most)
        return false;
    if (is_to_be_said())
        tool_say("--fail-over %s: %s (pid %d) used up to %s of GPU %d", options->over_text,
                 printable(summary_name(process), name), process->number,
                 rs_size_format_short(device->used_peak_bytes, used), device->device);
    return true;
}

static bool leaked(const struct run_options *options, const struct summary_process *process,
                   const struct summary_device *device)
{
    char name[NAME_BYTES], bytes[RS_SIZE_TEXT_BYTES];

    if (!options->fails_on_leak || !process->has_ended || !device->unfreed_blocks)
        return false;
    if (is_to_be_said())
        tool_say("--fail-on-leak: %s (pid %d) ended with %llu %s not freed on GPU %d, %s",
                 printable(summary_name(process), name), process->number,
                 (unsigned long long)device->unfreed_blocks,
                 device->unfreed_blocks == 1 ? "block" : "blocks", device->device,
                 rs_size_format_short(device->unfreed_bytes, bytes));
    return true;
}

/* Why the checks are not passed though nothing was found: not seen is not well. */
static bool has_not_seen_all(const struct summary *summary)
{
    if (summary->missed)
        tool_say("not checked: counters of %zu %s that rmmshim served did not reach this command",
                 summary->missed, summary->missed == 1 ? "process" : "processes");
    else if (summary->unserved_count)
        tool_say("not checked: %zu %s used CUDA without rmmshim", summary->unserved_count,
                 summary->unserved_count == 1 ? "process" : "processes");
    else if (summary->is_short)
        tool_say("not checked: some processes could not be counted");
    else if (!summary->count)
        tool_say("not checked: no process used CUDA through rmmshim");
    else
        return false;
    return true;
}

static bool checks_failed(const struct run_options *options, const struct summary *summary)
{
    bool failed = false;

    if (!options->has_fail_over && !options->fails_on_leak)
        return false;
    for (size_t i = 0; i < summary->count; i++)
        for (size_t j = 0; j < summary->processes[i].device_count; j++) {
            const struct summary_process *process = &summary->processes[i];
            failed |= used_more(options, process, &process->devices[j]);
            failed |= leaked(options, process, &process->devices[j]);
        }
    if (findings > SAID_MAX)
        tool_say("and %zu more", findings - SAID_MAX);
    return has_not_seen_all(summary) || failed;
}

int run_end(const struct run_options *options, char *const *words,
            const struct run_outcome *outcome)
{
    int code = parent_exit_code(&outcome->result);

    if (code != 0)
        gone_print_refusals();
    run_leaks_say(outcome->result.program, outcome->result.status);
    tell(options, words[0], outcome);
    if (!options->is_quiet && !outcome->runs)
        run_advice_say();
    return checks_failed(options, &outcome->summary) && code == 0 ? TOOL_FINDING : code;
}
