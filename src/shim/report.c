/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/report.h"

#include "base/lock.h"
#include "base/log.h"
#include "resource/resource_logging.h"
#include "shim/context.h"
#include "shim/leaks.h"
#include "shim/life.h"
#include "shim/limit.h"
#include "shim/page.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LOCKS_WAIT_NS = 500 * 1000 * 1000 }; /* for all of them together */

static struct rs_page page;

static void put(const char *format, ...) RS_PRINTF(1, 2);

static void put(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    rs_page_vput(&page, format, arguments);
    va_end(arguments);
}

static void put_escaped(const char *text)
{
    rs_page_put_escaped(&page, text, strlen(text));
}

static const char *unit_name(enum rs_counter_unit unit)
{
    static const char *const names[] = {"bytes", "count", "nanoseconds"};

    return names[unit];
}

/* ---- gathering ---- */

/* The counters of one kind's stacks of a device. */
struct collected {
    enum rs_kind kind;
    int device;
    struct rs_report report;
};

static struct collected all[RS_DEVICES_MAX * RS_KINDS];
static size_t all_count;

static void collect(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct collected *collected = data;

    if (stack->kind == collected->kind && stack->place.device == collected->device)
        rs_mr_report(mr, &collected->report);
}

/* Counters of all contexts, alive and gone. */
static void collect_stacks(struct collected *collected, enum rs_kind kind, int device)
{
    *collected = (struct collected){.kind = kind, .device = device};
    rs_report_fold(&collected->report, rs_context_folded_report(kind, device));
    rs_context_each_stack(collect, collected);
    if (kind == RS_KIND_DEVICE)
        rs_limit_report(device, &collected->report);
}

static void collect_all(void)
{
    bool is_short = false;

    for (int device = 0; device < RS_DEVICES_MAX; device++) {
        for (int kind = 0; kind < RS_KINDS; kind++) {
            collect_stacks(&all[all_count], (enum rs_kind)kind, device);
            is_short |= all[all_count].report.is_short;
            all_count += all[all_count].report.count > 0;
        }
    }
    if (is_short)
        rs_log_asked("RMM_STATISTICS: no memory for all counters: some are missing");
}

static void put_expression(const struct collected *collected, bool escaped)
{
    static char text[RS_EXPRESSION_TEXT_BYTES];
    const struct rs_expression *expression =
        rs_config_stack(&rs_config, collected->kind, collected->device);

    if (!expression)
        return;
    rs_expression_format(expression, NULL, text);
    if (escaped)
        put_escaped(text);
    else
        put("%s", text);
}

/* ---- as text ---- */

static void put_value(const struct rs_counter *counter)
{
    char text[RS_SIZE_TEXT_BYTES];

    if (counter->unit == RS_UNIT_BYTES)
        put("%s", rs_size_format_short(counter->value, text));
    else if (counter->unit == RS_UNIT_NANOSECONDS)
        put("%.3f ms", (double)counter->value / 1e6);
    else
        put("%llu", (unsigned long long)counter->value);
}

/* What a reader wants to know of if it happened at all. */
static bool is_event(const struct rs_counter *counter)
{
    static const char *const names[] = {
        "failures",       "refusals",         "driver_refusals",    "fallbacks",
        "waits",          "full_waits",       "waits_in_vain",      "defragmentations",
        "written_before", "written_past_end", "written_after_free", "unchecked",
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++)
        if (strcmp(counter->name, names[i]) == 0)
            return true;
    return false;
}

static bool is_limit(const struct rs_counter *counter)
{
    return strcmp(counter->name, "limit") == 0;
}

/* A resource's counters in one line, what is zero left out: "pool  held 4.00 GiB, chunks 2".
 * Returns the place after them. */
static size_t put_resource(const struct rs_report *report, size_t at)
{
    const char *resource = report->counters[at].resource, *between = "";

    for (; at < report->count && strcmp(report->counters[at].resource, resource) == 0; at++) {
        const struct rs_counter *counter = &report->counters[at];
        if (is_event(counter) || (!counter->value && !is_limit(counter)))
            continue;
        if (!*between)
            put("  %-11s", resource);
        put("%s %s ", between, counter->name);
        if (counter->value)
            put_value(counter);
        else
            put("none");
        between = ",";
    }
    if (*between)
        put("\n");
    return at;
}

/* A line each: "  pool: failures 3". */
static void put_events(const struct rs_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        if (counter->value && is_event(counter))
            put("  %s: %s %llu\n", counter->resource, counter->name,
                (unsigned long long)counter->value);
    }
}

/* All counters, zeros too, are in the other formats. */
static void put_text(const struct collected *collected)
{
    const struct rs_report *report = &collected->report;

    put("rmmshim[%d]: %s, device %d%s: ", (int)getpid(), program_invocation_short_name,
        collected->device, rs_kind_texts[collected->kind]);
    put_expression(collected, false);
    put("\n");
    for (size_t i = 0; i < report->count;)
        i = put_resource(report, i);
    put_events(report);
}

/* ---- as JSON ---- */

static void put_json_stacks(const struct collected *collected)
{
    const struct rs_report *report = &collected->report;

    put("{\"device\":%d,\"kind\":\"%s\",\"expression\":\"", collected->device,
        rs_kind_names[collected->kind]);
    put_expression(collected, true);
    put("\",\"counters\":[");
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        put("%s\n{\"resource\":\"%s\",\"name\":\"%s\",\"unit\":\"%s\",\"value\":%llu}",
            i ? "," : "", counter->resource, counter->name, unit_name(counter->unit),
            (unsigned long long)counter->value);
    }
    put("]}");
}

static void put_json_left_out(void)
{
    const struct rs_locks_missed *missed = rs_locks_missed();

    put("],\"left_out\":[");
    for (unsigned i = 0; i < missed->name_count; i++) {
        put("%s\"", i ? "," : "");
        put_escaped(missed->names[i]);
        put("\"");
    }
    put("]}\n");
}

static void put_json(void)
{
    put("{\"schema\":1,\"pid\":%d,\"program\":\"", (int)getpid());
    put_escaped(program_invocation_short_name);
    put("\",\"devices\":[");
    for (size_t i = 0; i < all_count; i++) {
        put("%s\n", i ? "," : "");
        put_json_stacks(&all[i]);
    }
    put_json_left_out();
}

/* ---- Prometheus: all samples of a metric stand together ---- */

static const struct rs_counter *find_counter(const struct collected *collected,
                                             const struct rs_counter *like)
{
    for (size_t i = 0; i < collected->report.count; i++) {
        const struct rs_counter *counter = &collected->report.counters[i];
        if (strcmp(counter->resource, like->resource) == 0 &&
            strcmp(counter->name, like->name) == 0)
            return counter;
    }
    return NULL;
}

static bool is_said_before(size_t end, const struct rs_counter *counter)
{
    for (size_t i = 0; i < end; i++)
        if (find_counter(&all[i], counter))
            return true;
    return false;
}

/* "rmmshim_pool_held_bytes", "rmmshim_pool_growths_total": in base units. */
static void put_metric_name(const struct rs_counter *counter)
{
    static const char *const units[] = {"_bytes", "", "_seconds"};
    bool is_total = counter->kind == RS_COUNTER_TOTAL;

    put("rmmshim_%s", counter->resource);
    if (!is_total || strcmp(counter->name, "total") != 0)
        put("_%s", counter->name);
    put("%s%s", units[counter->unit], is_total ? "_total" : "");
}

static void put_metric_head(const struct rs_counter *counter)
{
    static const char *const when[] = {"since the process began", "at its exit", "at most"};
    static const char *const units[] = {" in bytes", "", " in seconds"};

    put("# HELP ");
    put_metric_name(counter);
    put(" %s of %s%s, %s.\n# TYPE ", counter->name, counter->resource, units[counter->unit],
        when[counter->kind]);
    put_metric_name(counter);
    put(" %s\n", counter->kind == RS_COUNTER_TOTAL ? "counter" : "gauge");
}

static void put_sample(const struct collected *collected, const struct rs_counter *counter)
{
    unsigned long long value = counter->value;

    put_metric_name(counter);
    put("{device=\"%d\",kind=\"%s\",program=\"", collected->device, rs_kind_names[collected->kind]);
    put_escaped(program_invocation_short_name);
    if (counter->unit == RS_UNIT_NANOSECONDS)
        put("\"} %llu.%09llu\n", value / 1000000000, value % 1000000000);
    else
        put("\"} %llu\n", value);
}

static void put_metric(const struct rs_counter *like)
{
    put_metric_head(like);
    for (size_t i = 0; i < all_count; i++) {
        const struct rs_counter *counter = find_counter(&all[i], like);
        if (counter)
            put_sample(&all[i], counter);
    }
}

static void put_prometheus(void)
{
    for (size_t i = 0; i < all_count; i++)
        for (size_t j = 0; j < all[i].report.count; j++)
            if (!is_said_before(i, &all[i].report.counters[j]))
                put_metric(&all[i].report.counters[j]);
}

/* ---- the whole ---- */

static void put_report(void)
{
    switch (rs_config.statistics) {
    case RS_STATISTICS_JSON:
        put_json();
        break;
    case RS_STATISTICS_PROMETHEUS:
        put_prometheus();
        break;
    case RS_STATISTICS_TEXT:
    case RS_STATISTICS_NONE:
        for (size_t i = 0; i < all_count; i++)
            put_text(&all[i]);
        break;
    }
}

static struct rs_page_file file = {.variable = "RMM_STATISTICS"};

void rs_report_claim(void)
{
    rs_page_claim(&file, rs_config.statistics_path);
    rs_leaks_claim();
}

static void write_report(void)
{
    collect_all();
    rs_page_begin(&page, &file, rs_config.statistics_path);
    if (all_count > 0) /* a device was used */
        put_report();
    rs_page_end(&page);
}

static _Atomic bool armed;

static void say_left_out(void)
{
    const struct rs_locks_missed *missed = rs_locks_missed();
    char text[RS_LOG_LINE_BYTES] = "";
    size_t used = 0;

    for (unsigned i = 0; i < missed->name_count && used < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? ", " : "",
                                 missed->names[i]);
    if (used)
        rs_log_asked("at exit a thread was inside, and it was left out: %s", text);
}

/* After all exit handlers and other libraries' destructors that may still free.  Calls nothing of
 * CUDA: the driver may be gone.  Takes no lock but bounded, and no malloc: a signal's handler may
 * have called exit() in the middle of either. */
__attribute__((destructor)) static void at_exit(void)
{
    if (!atomic_exchange(&armed, false) || !rs_life_serving())
        return; /* nothing was asked for, or this is a forked child */
    rs_lock_bound_begin(LOCKS_WAIT_NS);
    rs_logging_end();
    if (rs_config.statistics != RS_STATISTICS_NONE)
        write_report();
    if (rs_config.tracking != RS_STATISTICS_NONE)
        rs_leaks_write();
    say_left_out();
    rs_lock_bound_end();
}

void rs_report_arm(void)
{
    atomic_store(&armed, true);
}
