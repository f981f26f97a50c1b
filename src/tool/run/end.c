/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/end.h"

#include "config/variables.h"
#include "report/page.h"
#include "report/plain.h"
#include "tool/doctor/driver.h"
#include "tool/run/gone.h"
#include "tool/run/summary.h"
#include "tool/tool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAID_MAX = 8, NS_PER_MS = 1000 * 1000, NAME_BYTES = 64 };

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

/* ---- one line each ---- */

/* A program chooses its name: a terminal is not to obey it. */
static const char *printable(const char *name, char text[NAME_BYTES])
{
    snprintf(text, NAME_BYTES, "%.*s", NAME_BYTES - 1, name);
    rs_plain_make(text);
    return text;
}

/* "6.10 of 8.00 GiB limit (76 %)", or "6.10 GiB". */
static const char *peak_text(const struct summary_device *device, char text[4 * RS_SIZE_TEXT_BYTES])
{
    char peak[RS_SIZE_TEXT_BYTES], limit[RS_SIZE_TEXT_BYTES];
    const char *unit, *limit_unit;

    rs_size_format_short(device->peak_bytes, peak);
    rs_size_format_short(device->limit_bytes, limit);
    unit = strchr(peak, ' ');
    limit_unit = strchr(limit, ' ');
    if (!device->limit_bytes) {
        snprintf(text, 4ul * RS_SIZE_TEXT_BYTES, "%s", peak);
        return text;
    }
    if (unit && limit_unit && strcmp(unit, limit_unit) == 0)
        peak[unit - peak] = '\0';
    snprintf(text, 4ul * RS_SIZE_TEXT_BYTES, "%s of %s limit (%.0f %%)", peak, limit,
             100 * (double)device->peak_bytes / (double)device->limit_bytes);
    return text;
}

static void say_device(const struct summary_process *process, const struct summary_device *device)
{
    char name[NAME_BYTES], peak[4 * RS_SIZE_TEXT_BYTES];

    tool_say("%s [%d] device %d: peak %s, %llu refused, %llu %s, waited %llu ms for the "
             "GPU",
             printable(process->program, name), process->number, device->device,
             peak_text(device, peak), (unsigned long long)device->refusals,
             (unsigned long long)device->allocations,
             device->allocations == 1 ? "allocation" : "allocations",
             (unsigned long long)(device->waited_ns / NS_PER_MS));
}

static int by_peak(const void *one, const void *other)
{
    uint64_t a = summary_peak(*(const struct summary_process *const *)one);
    uint64_t b = summary_peak(*(const struct summary_process *const *)other);

    return (a < b) - (a > b);
}

/* Those with the highest peaks. */
static void say_processes(const struct summary *summary)
{
    const struct summary_process **order =
        calloc(summary->count + 1, sizeof(struct summary_process *));
    size_t said = summary->count < SAID_MAX ? summary->count : SAID_MAX;

    for (size_t i = 0; order && i < summary->count; i++)
        order[i] = &summary->processes[i];
    if (order)
        qsort(order, summary->count, sizeof(struct summary_process *), by_peak);
    for (size_t i = 0; order && i < said; i++)
        for (size_t j = 0; j < order[i]->device_count; j++)
            say_device(order[i], &order[i]->devices[j]);
    if (summary->count > said)
        tool_say("and %zu more", summary->count - said);
    free(order);
}

/* ---- what escaped ---- */

static void add_text(char *text, size_t room, const char *format, ...) RS_PRINTF(3, 4);

static void add_text(char *text, size_t room, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text + length, room - length, format, arguments);
    va_end(arguments);
}

/* Why no process used CUDA through the library, if that is known.  RMM_ONLY may hold any name, so
 * that a misspelt one shows here alone. */
static void add_why_none(const struct summary *summary, char *text, size_t room)
{
    const char *only = rs_variables[RS_VARIABLE_ONLY].option.name, *patterns = getenv(only);
    char shown[NAME_BYTES];

    if (nothing_set)
        add_text(text, room, " (no setting gives a stack or a limit)");
    else if (!driver_can_be_loaded())
        add_text(text, room, " (libcuda.so.1 cannot be loaded)");
    else if (patterns && *patterns && !summary->unserved_count)
        add_text(text, room, " (%s=%s%s names no program that used CUDA)", only,
                 printable(patterns, shown), strlen(patterns) < NAME_BYTES ? "" : "...");
}

static void say_escaped(const struct summary *summary)
{
    char line[SAID_MAX * (NAME_BYTES + 80) + 512] = "", name[NAME_BYTES];
    const struct unserved *all = summary->unserved;
    size_t count = summary->unserved_count;

    if (summary->count == 1)
        add_text(line, sizeof(line), "1 process used CUDA through rmmshim");
    else if (summary->count)
        add_text(line, sizeof(line), "%zu processes used CUDA through rmmshim", summary->count);
    else if (summary->missed)
        add_text(line, sizeof(line), "no process that used CUDA through rmmshim could be counted");
    else
        add_text(line, sizeof(line), "no process used CUDA through rmmshim");
    if (!summary->count && !summary->missed)
        add_why_none(summary, line, sizeof(line));
    add_text(line, sizeof(line), "; seen without it:%s", count ? "" : " none");
    for (size_t i = 0; i < count && i < SAID_MAX; i++)
        add_text(line, sizeof(line), "%s %s [%d] (%s)", i ? "," : "",
                 printable(all[i].program, name), all[i].number,
                 unserved_reason_text(all[i].reason));
    if (count > SAID_MAX)
        add_text(line, sizeof(line), " and %zu more", count - SAID_MAX);
    if (summary->missed)
        add_text(line, sizeof(line), "; not all could be counted: %zu did not reach this command",
                 summary->missed);
    else if (summary->is_short)
        add_text(line, sizeof(line), "; not all could be counted");
    tool_say("%s", line);
}

/* ---- as JSON ---- */

static void put_text(struct rs_page *page, const char *name, const char *text)
{
    rs_page_put(page, "\"%s\":\"", name);
    rs_page_put_escaped(page, text, strlen(text));
    rs_page_put(page, "\"");
}

static void put_number(struct rs_page *page, const char *name, uint64_t number)
{
    rs_page_put(page, ",\"%s\":%llu", name, (unsigned long long)number);
}

static void put_device(struct rs_page *page, const struct summary_device *device)
{
    rs_page_put(page, "{\"device\":%d", device->device);
    put_number(page, "peak_bytes", device->peak_bytes);
    put_number(page, "requested_peak_bytes", device->requested_peak_bytes);
    put_number(page, "limit_bytes", device->limit_bytes);
    put_number(page, "refusals", device->refusals);
    put_number(page, "allocations", device->allocations);
    put_number(page, "waited_nanoseconds", device->waited_ns);
    put_number(page, "live_bytes", device->live_bytes);
    put_number(page, "live_blocks", device->live_blocks);
    rs_page_put(page, "}");
}

static void put_process(struct rs_page *page, const struct summary_process *process)
{
    rs_page_put(page, "{\"pid\":%d,", process->number);
    put_text(page, "program", process->program);
    rs_page_put(page, ",");
    put_text(page, "rank", process->rank);
    rs_page_put(page, ",\"ended\":%s,\"devices\":[", process->has_ended ? "true" : "false");
    for (size_t i = 0; i < process->device_count; i++) {
        rs_page_put(page, "%s\n", i ? "," : "");
        put_device(page, &process->devices[i]);
    }
    rs_page_put(page, "]}");
}

static void put_unserved(struct rs_page *page, const struct summary *summary)
{
    const struct unserved *all = summary->unserved;

    rs_page_put(page, "],\"unserved\":[");
    for (size_t i = 0; i < summary->unserved_count; i++) {
        rs_page_put(page, "%s\n{\"pid\":%d,", i ? "," : "", all[i].number);
        put_text(page, "program", all[i].program);
        rs_page_put(page, ",");
        put_text(page, "reason", unserved_reason_text(all[i].reason));
        rs_page_put(page, "}");
    }
    rs_page_put(page, "]");
}

static void write_json(const char *path, const char *program, const struct run_outcome *outcome)
{
    static struct rs_page page;
    const struct summary *summary = &outcome->summary;
    const struct parent_result *result = &outcome->result;
    bool has_path = strcmp(path, "-") != 0;

    rs_page_begin(&page, &json_file, has_path ? path : NULL);
    rs_page_put(&page, "{\"schema\":1,\"pid\":%d,", (int)result->program);
    put_text(&page, "program", program);
    put_number(&page, "exit_status", (uint64_t)parent_exit_code(result));
    put_number(&page, "signal",
               (uint64_t)(WIFSIGNALED(result->status) ? WTERMSIG(result->status) : 0));
    if (outcome->runs) {
        put_number(&page, "smallest_limit_bytes", outcome->smallest_limit_bytes);
        put_number(&page, "runs", outcome->runs);
    }
    rs_page_put(&page, ",\"processes\":[");
    for (size_t i = 0; i < summary->count; i++) {
        rs_page_put(&page, "%s\n", i ? "," : "");
        put_process(&page, &summary->processes[i]);
    }
    put_unserved(&page, summary);
    rs_page_put(&page, ",\"incomplete\":%s}\n", summary_is_incomplete(summary) ? "true" : "false");
    rs_page_end(&page);
}

/* ---- checks ---- */

static size_t findings; /* of the checks */

static bool is_to_be_said(void)
{
    return ++findings <= SAID_MAX;
}

static bool took_more(const struct run_options *options, const struct summary_process *process,
                      const struct summary_device *device)
{
    size_t most = rs_size_resolve(options->over, device->total_bytes, device->total_bytes);
    char name[NAME_BYTES], took[RS_SIZE_TEXT_BYTES];

    if (!options->has_fail_over)
        return false;
    if (options->over.kind != RS_SIZE_BYTES && !device->total_bytes) {
        tool_say("--fail-over %s: the memory of device %d is not known, so a share of it is not "
                 "either",
                 options->over_text, device->device);
        return true;
    }
    if (device->peak_bytes <= most)
        return false;
    if (is_to_be_said())
        tool_say("--fail-over %s: %s [%d] took %s of device %d", options->over_text,
                 printable(process->program, name), process->number,
                 rs_size_format_short(device->peak_bytes, took), device->device);
    return true;
}

static bool leaked(const struct run_options *options, const struct summary_process *process,
                   const struct summary_device *device)
{
    char name[NAME_BYTES], bytes[RS_SIZE_TEXT_BYTES];

    if (!options->fails_on_leak || !process->has_ended || !device->live_blocks)
        return false;
    if (is_to_be_said())
        tool_say("--fail-on-leak: %s [%d] ended with %llu %s not freed on device %d, %s",
                 printable(process->program, name), process->number,
                 (unsigned long long)device->live_blocks,
                 device->live_blocks == 1 ? "block" : "blocks", device->device,
                 rs_size_format_short(device->live_bytes, bytes));
    return true;
}

/* Why the checks are not passed though nothing was found: not seen is not well. */
static bool has_not_seen_all(const struct summary *summary)
{
    if (summary->missed)
        tool_say("not checked: %zu %s served did not reach this command", summary->missed,
                 summary->missed == 1 ? "process that was" : "processes that were");
    else if (summary->unserved_count)
        tool_say("not checked: %zu %s used CUDA without rmmshim", summary->unserved_count,
                 summary->unserved_count == 1 ? "process" : "processes");
    else if (summary->is_short)
        tool_say("not checked: not all processes could be held");
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
            failed |= took_more(options, process, &process->devices[j]);
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
    if (!options->is_quiet && !outcome->runs) {
        say_processes(&outcome->summary);
        say_escaped(&outcome->summary);
    }
    if (options->json)
        write_json(options->json, words[0], outcome);
    return checks_failed(options, &outcome->summary) && code == 0 ? TOOL_FINDING : code;
}
