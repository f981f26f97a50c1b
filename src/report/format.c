/* SPDX-License-Identifier: Apache-2.0 */
/* A report of statistics as text, JSON and Prometheus text. */
#include "report/format.h"

#include "context/phase.h"

#include <stdarg.h>
#include <string.h>

/* The destination and subject of the report being written; one is written at a time. */
static struct rs_page *page;
static const struct rs_report_subject *subject;

static void put(const char *format, ...) RS_PRINTF(1, 2);

static void put(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    rs_page_vput(page, format, arguments);
    va_end(arguments);
}

static void put_escaped(const char *text)
{
    rs_page_put_escaped(page, text, strlen(text));
}

static const char *unit_name(enum rs_counter_unit unit)
{
    static const char *const names[] = {"bytes", "count", "nanoseconds"};

    return names[unit];
}

/* ---- phases ---- */

/* Calls `put_it` for each kind of memory of each device that phase number `index` took any of, and
 * returns how often. */
static unsigned put_phase_memory(unsigned index,
                                 void (*put_it)(const struct rs_phase *phase, enum rs_kind kind,
                                                int device, const struct rs_phase_memory *memory,
                                                bool is_first))
{
    struct rs_phase_memory memory;
    struct rs_phase phase;
    unsigned count = 0;

    for (int device = 0; device < RS_DEVICES_MAX; device++)
        for (enum rs_kind kind = 0; kind < RS_KINDS; kind++)
            if (rs_phase_get(index, kind, device, &phase, &memory) &&
                (memory.peak_live_bytes || memory.entered_blocks || memory.peak_charged_bytes))
                put_it(&phase, kind, device, &memory, count++ == 0);
    return count;
}

/* ---- as text ---- */

static void put_size(const char *what, uint64_t bytes)
{
    char text[RS_SIZE_TEXT_BYTES];

    put(", %s %s", what, rs_size_format_short(bytes, text));
}

static void put_phase_head(const struct rs_phase *phase)
{
    put("rmmshim[%d]: %s, phase %s: ", subject->process, subject->program, phase->name);
}

static void put_text_memory(const struct rs_phase *phase, enum rs_kind kind, int device,
                            const struct rs_phase_memory *memory, bool is_first)
{
    (void)is_first;
    put_phase_head(phase);
    put("device %d%s, entries %llu", device, rs_kind_texts[kind],
        (unsigned long long)phase->entries);
    put_size("peak", memory->peak_bytes);
    put_size("most live", memory->peak_live_bytes);
    put_size("allocated", memory->entered_bytes);
    put(" in %llu blocks", (unsigned long long)memory->entered_blocks);
    put_size("by its own thread", memory->thread_entered_bytes);
    if (memory->peak_charged_bytes)
        put_size("most charged", memory->peak_charged_bytes);
    put("\n");
}

static void put_text_phases(void)
{
    struct rs_phase phase;

    for (unsigned i = 0; rs_phase_get(i, RS_KIND_DEVICE, 0, &phase, NULL); i++) {
        if (put_phase_memory(i, put_text_memory) > 0)
            continue;
        put_phase_head(&phase);
        put("entries %llu, no memory\n", (unsigned long long)phase.entries);
    }
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

/* True for a counter of events that a reader wants to see if any happened. */
static bool is_event(const struct rs_counter *counter)
{
    static const char *const names[] = {
        "refused",          "fallbacks",          "waits",
        "full_waits",       "waits_in_vain",      "written_before",
        "written_past_end", "written_after_free", "unchecked",
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++)
        if (strcmp(counter->name, names[i]) == 0)
            return true;
    return false;
}

/* True for what went wrong inside, while the program may have got its memory another way: a reader
 * would take it for errors of the program's. */
static bool is_inner(const struct rs_counter *counter)
{
    return strcmp(counter->name, "failures") == 0 ||
           strcmp(counter->name, "internal_refusals") == 0 ||
           strcmp(counter->name, "refusals_expected") == 0;
}

static bool is_limit(const struct rs_counter *counter)
{
    return strcmp(counter->name, "limit") == 0;
}

/* Writes a resource's counters other than zero in one line: "pool  held 4.00 GiB, chunks 2".
 * Returns the index after them. */
static size_t put_resource(const struct rs_report *report, size_t at)
{
    const char *resource = report->counters[at].resource, *between = "";

    for (; at < report->count && strcmp(report->counters[at].resource, resource) == 0; at++) {
        const struct rs_counter *counter = &report->counters[at];
        if (is_event(counter) || is_inner(counter) || (!counter->value && !is_limit(counter)))
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

/* Writes one line per counter of events: "  pool: failures 3". */
static void put_events(const struct rs_report *report)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        if (counter->value && is_event(counter))
            put("  %s: %s %llu\n", counter->resource, counter->name,
                (unsigned long long)counter->value);
    }
}

/* Writes a stack as text, without counters that are zero; the other formats have all counters. */
static void put_text(const struct rs_reported_stack *stack)
{
    const struct rs_report *report = &stack->report;

    put("rmmshim[%d]: %s, device %d%s: ", subject->process, subject->program, stack->device,
        rs_kind_texts[stack->kind]);
    put("%s\n", subject->expression(stack));
    for (size_t i = 0; i < report->count;)
        i = put_resource(report, i);
    put_events(report);
}

/* ---- as JSON ---- */

static void put_json_stacks(const struct rs_reported_stack *stack)
{
    const struct rs_report *report = &stack->report;

    put("{\"device\":%d,\"kind\":\"%s\",\"expression\":\"", stack->device,
        rs_kind_names[stack->kind]);
    put_escaped(subject->expression(stack));
    put("\",\"counters\":[");
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        put("%s\n{\"resource\":\"%s\",\"name\":\"%s\",\"unit\":\"%s\",\"value\":%llu}",
            i ? "," : "", counter->resource, counter->name, unit_name(counter->unit),
            (unsigned long long)counter->value);
    }
    put("]}");
}

#define NUMBER(name, value) put(",\"" name "\":%llu", (unsigned long long)(value))

static void put_json_memory(const struct rs_phase *phase, enum rs_kind kind, int device,
                            const struct rs_phase_memory *memory, bool is_first)
{
    (void)phase;
    put("%s\n{\"device\":%d,\"kind\":\"%s\"", is_first ? "" : ",", device, rs_kind_names[kind]);
    NUMBER("peak_bytes", memory->peak_bytes);
    NUMBER("peak_live_bytes", memory->peak_live_bytes);
    NUMBER("allocated_bytes", memory->entered_bytes);
    NUMBER("allocations", memory->entered_blocks);
    NUMBER("thread_peak_bytes", memory->thread_peak_bytes);
    NUMBER("thread_allocated_bytes", memory->thread_entered_bytes);
    NUMBER("thread_allocations", memory->thread_entered_blocks);
    NUMBER("peak_charged_bytes", memory->peak_charged_bytes);
    put("}");
}

static void put_json_phases(void)
{
    struct rs_phase phase;

    for (unsigned i = 0; rs_phase_get(i, RS_KIND_DEVICE, 0, &phase, NULL); i++) {
        put("%s\n{\"name\":\"", i ? "," : "],\"phases\":[");
        put_escaped(phase.name);
        put("\"");
        NUMBER("entries", phase.entries);
        NUMBER("open", phase.open);
        NUMBER("unended", phase.unended);
        put(",\"memory\":[");
        (void)put_phase_memory(i, put_json_memory);
        put("]}");
    }
}

#undef NUMBER

static void put_json_left_out(void)
{
    put("],\"left_out\":[");
    for (unsigned i = 0; i < subject->left_out_count; i++) {
        put("%s\"", i ? "," : "");
        put_escaped(subject->left_out[i]);
        put("\"");
    }
    put("]}\n");
}

static void put_json(void)
{
    put("{\"schema\":1,\"pid\":%d,\"program\":\"", subject->process);
    put_escaped(subject->program);
    put("\",\"devices\":[");
    for (size_t i = 0; i < subject->stack_count; i++) {
        put("%s\n", i ? "," : "");
        put_json_stacks(&subject->stacks[i]);
    }
    if (subject->is_this_process)
        put_json_phases();
    put_json_left_out();
}

/* ---- Prometheus: all samples of a metric stand together ---- */

/* Whether it is the same metric: a process that lies may have another unit. */
static bool is_same_metric(const struct rs_counter *one, const struct rs_counter *other)
{
    return strcmp(one->resource, other->resource) == 0 && strcmp(one->name, other->name) == 0 &&
           one->unit == other->unit &&
           (one->kind == RS_COUNTER_TOTAL) == (other->kind == RS_COUNTER_TOTAL);
}

static const struct rs_counter *find_counter(const struct rs_reported_stack *stack,
                                             const struct rs_counter *like)
{
    for (size_t i = 0; i < stack->report.count; i++)
        if (is_same_metric(&stack->report.counters[i], like))
            return &stack->report.counters[i];
    return NULL;
}

/* All subjects of which the metrics are. */
static const struct rs_report_subject *subjects;
static size_t subject_count;

static const struct rs_counter *find_in_stacks(const struct rs_report_subject *of,
                                               size_t stack_count, const struct rs_counter *like)
{
    const struct rs_counter *counter = NULL;

    for (size_t i = 0; i < stack_count && !counter; i++)
        counter = find_counter(&of->stacks[i], like);
    return counter;
}

/* Of subjects before this one, or of its stacks before `stack_count`. */
static bool is_said_before(const struct rs_report_subject *of, size_t stack_count,
                           const struct rs_counter *counter)
{
    for (const struct rs_report_subject *before = subjects; before < of; before++)
        if (find_in_stacks(before, before->stack_count, counter))
            return true;
    return find_in_stacks(of, stack_count, counter) != NULL;
}

/* Writes a metric's name in base units: "rmmshim_pool_held_bytes", "rmmshim_pool_growths_total". */
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
    static const char *const when[] = {"since the process began", "at this report", "at most",
                                       "at this report"};
    static const char *const units[] = {" in bytes", "", " in seconds"};

    put("# HELP ");
    put_metric_name(counter);
    put(" %s of %s%s, %s.\n# TYPE ", counter->name, counter->resource, units[counter->unit],
        when[counter->kind]);
    put_metric_name(counter);
    put(" %s\n", counter->kind == RS_COUNTER_TOTAL ? "counter" : "gauge");
}

static void put_more_labels(const struct rs_report_subject *of, const struct rs_counter *counter)
{
    if (of->more_labels)
        put("%s,resource=\"%s\"", of->more_labels, counter->resource);
}

static void put_sample(const struct rs_report_subject *of, const struct rs_reported_stack *stack,
                       const struct rs_counter *counter)
{
    unsigned long long value = counter->value;

    put_metric_name(counter);
    put("{device=\"%d\",kind=\"%s\",program=\"", stack->device, rs_kind_names[stack->kind]);
    put_escaped(of->program);
    put("\"");
    put_more_labels(of, counter);
    if (counter->unit == RS_UNIT_NANOSECONDS)
        put("} %llu.%09llu\n", value / 1000000000, value % 1000000000);
    else
        put("} %llu\n", value);
}

static void put_samples(const struct rs_report_subject *of, const struct rs_counter *like)
{
    for (size_t i = 0; i < of->stack_count; i++) {
        const struct rs_counter *counter = find_counter(&of->stacks[i], like);
        if (counter)
            put_sample(of, &of->stacks[i], counter);
    }
}

static void put_metric(const struct rs_counter *like)
{
    put_metric_head(like);
    for (size_t i = 0; i < subject_count; i++)
        put_samples(&subjects[i], like);
}

/* Those that no subject before this one has. */
static void put_new_metrics(const struct rs_report_subject *of)
{
    for (size_t i = 0; i < of->stack_count; i++)
        for (size_t j = 0; j < of->stacks[i].report.count; j++)
            if (!is_said_before(of, i, &of->stacks[i].report.counters[j]))
                put_metric(&of->stacks[i].report.counters[j]);
}

void rs_report_put_prometheus(struct rs_page *to, const struct rs_report_subject *of, size_t count)
{
    page = to;
    subjects = of;
    subject_count = count;
    for (size_t i = 0; i < count; i++)
        put_new_metrics(&of[i]);
}

/* ---- the whole ---- */

void rs_report_put(struct rs_page *to, enum rs_statistics_format format,
                   const struct rs_report_subject *of)
{
    page = to;
    subject = of;
    switch (format) {
    case RS_STATISTICS_JSON:
        put_json();
        break;
    case RS_STATISTICS_PROMETHEUS:
        rs_report_put_prometheus(to, of, 1);
        break;
    case RS_STATISTICS_TEXT:
    case RS_STATISTICS_NONE:
        for (size_t i = 0; i < of->stack_count; i++)
            put_text(&of->stacks[i]);
        if (of->is_this_process)
            put_text_phases();
        break;
    }
}
