/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/report.h"

#include "resource/resource_logging.h"
#include "shim/context.h"
#include "shim/leaks.h"
#include "shim/life.h"
#include "shim/limit.h"
#include "shim/page.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 64 << 10 };

static char page_text[TEXT_BYTES];
static struct rs_page page = {page_text, TEXT_BYTES, 0};

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

struct collected {
    enum rs_kind kind;
    int device;
    struct rs_report report;
};

static void collect(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct collected *collected = data;

    if (stack->kind == collected->kind && stack->place.device == collected->device)
        rs_mr_report(mr, &collected->report);
}

/* Counters of all contexts, alive and gone.  False when there were none. */
static bool collect_stacks(struct collected *collected, enum rs_kind kind, int device)
{
    collected->kind = kind;
    collected->device = device;
    collected->report = *rs_context_folded_report(kind, device);
    rs_context_each_stack(collect, collected);
    if (kind == RS_KIND_DEVICE)
        rs_limit_report(device, &collected->report);
    return collected->report.count > 0;
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

/* One line a resource: "pool  held 4.00 GiB, held_peak 4.00 GiB, ..." */
static void put_text(const struct collected *collected)
{
    const struct rs_report *report = &collected->report;

    put("rmmshim[%d]: %s, device %d%s: ", (int)getpid(), program_invocation_short_name,
        collected->device, rs_kind_texts[collected->kind]);
    put_expression(collected, false);
    put("\n");
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        bool first = i == 0 || strcmp(counter->resource, report->counters[i - 1].resource) != 0;
        if (first)
            put("%s  %-11s", i ? "\n" : "", counter->resource);
        put("%s%s ", first ? " " : ", ", counter->name);
        put_value(counter);
    }
    put("\n");
}

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

static void put_prometheus(const struct collected *collected)
{
    const struct rs_report *report = &collected->report;

    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        put("rmmshim_%s_%s%s%s{device=\"%d\",kind=\"%s\",pid=\"%d\",program=\"", counter->resource,
            counter->name, counter->unit == RS_UNIT_COUNT ? "" : "_",
            counter->unit == RS_UNIT_COUNT ? "" : unit_name(counter->unit), collected->device,
            rs_kind_names[collected->kind], (int)getpid());
        put_escaped(program_invocation_short_name);
        put("\"} %llu\n", (unsigned long long)counter->value);
    }
}

static void put_stacks(const struct collected *collected, bool first)
{
    switch (rs_config.statistics) {
    case RS_STATISTICS_JSON:
        put("%s\n", first ? "" : ",");
        put_json_stacks(collected);
        break;
    case RS_STATISTICS_PROMETHEUS:
        put_prometheus(collected);
        break;
    case RS_STATISTICS_TEXT:
    case RS_STATISTICS_NONE:
        put_text(collected);
        break;
    }
}

static void fill_page(void)
{
    static struct collected collected;
    bool json = rs_config.statistics == RS_STATISTICS_JSON, first = true;

    if (json) {
        put("{\"schema\":1,\"pid\":%d,\"program\":\"", (int)getpid());
        put_escaped(program_invocation_short_name);
        put("\",\"devices\":[");
    }
    for (int device = 0; device < RS_DEVICES_MAX; device++) {
        for (int kind = 0; kind < RS_KINDS; kind++) {
            if (!collect_stacks(&collected, (enum rs_kind)kind, device))
                continue;
            put_stacks(&collected, first);
            first = false;
        }
    }
    if (json)
        put("]}\n");
    if (first)
        page.length = 0; /* no device was used */
}

static void write_report(void)
{
    fill_page();
    if (page.length > 0)
        rs_page_write(&page, "RMM_STATISTICS", rs_config.statistics_path);
}

static _Atomic bool armed;

/* After all exit handlers and other libraries' destructors that may still free.  Calls nothing of
 * CUDA: the driver may be gone. */
__attribute__((destructor)) static void at_exit(void)
{
    if (!atomic_exchange(&armed, false) || !rs_life_serving())
        return; /* nothing was asked for, or this is a forked child */
    rs_logging_flush_all();
    if (rs_config.statistics != RS_STATISTICS_NONE)
        write_report();
    if (rs_config.tracking != RS_STATISTICS_NONE)
        rs_leaks_write();
}

void rs_report_arm(void)
{
    atomic_store(&armed, true);
}
