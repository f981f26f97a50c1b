/* SPDX-License-Identifier: Apache-2.0 */
/* A report of statistics as a document (report/document.h). */
#include "report/format.h"

#include "context/block_counts.h"
#include "context/phase.h"
#include "report/counter_help.h"
#include "report/document.h"
#include "report/usage.h"

#include <string.h>

/* ---- counters ---- */

/* A name in base units: "rmmshim_pool_held_bytes", "rmmshim_pool_growths_total". */
static const struct rs_metric *metric_of(struct rs_node *value, const struct rs_counter *counter)
{
    static const char *const units[] = {"_bytes", "", "_seconds"};
    bool is_total = counter->kind == RS_COUNTER_TOTAL;
    bool is_sum = is_total && strcmp(counter->name, "total") == 0;
    const char *name = rs_document_format(value->document, "rmmshim_%s%s%s%s%s", counter->resource,
                                          is_sum ? "" : "_", is_sum ? "" : counter->name,
                                          units[counter->unit], is_total ? "_total" : "");

    return rs_document_metric(value->document, name, rs_counter_help(counter), is_total);
}

static void add_counter(struct rs_node *counters, const struct rs_counter *counter,
                        bool is_resource_label, const char *line)
{
    static const char *const units[] = {"bytes", "count", "nanoseconds"};
    static const enum rs_value values[] = {RS_VALUE_BYTES, RS_VALUE_COUNT, RS_VALUE_NANOSECONDS};
    struct rs_node *node = rs_node_object(counters, NULL), *value;

    rs_node_word(node, "resource", counter->resource)->is_label = is_resource_label;
    rs_node_word(node, "name", counter->name);
    rs_node_word(node, "unit", units[counter->unit]);
    value = rs_node_number(node, "value", values[counter->unit], counter->value);
    value->metric = metric_of(value, counter);
    node->line = line;
}

/* ---- their text: without counters that are zero, as the other formats have all ---- */

/* Of events that a reader wants to see if any happened, each in a line. */
static const char *event_line(const struct rs_counter *counter)
{
    static const char *const names[] = {
        "fallbacks",          "waits",          "full_waits",
        "waits_in_vain",      "written_before", "written_past_end",
        "written_after_free", "unchecked",
    };

    if (strcmp(counter->resource, RS_PROGRAM) == 0 && strcmp(counter->name, "refused") == 0)
        return "  program: {value} out-of-memory error{value||s}\n";
    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++)
        if (strcmp(counter->name, names[i]) == 0)
            return "  {resource}: {name} {value}\n";
    return NULL;
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

static bool has_text(const struct rs_counter *counter)
{
    return !is_inner(counter) && (counter->value || is_limit(counter));
}

/* Adds the counters of one resource, from `at` on, whose text is one line: "pool  held 4.00 GiB,
 * chunks 2"; and those of events behind them.  Returns the index after them. */
static size_t add_resource(struct rs_node *counters, const struct rs_report *report, size_t at,
                           bool is_label)
{
    const char *resource = report->counters[at].resource;
    struct rs_node *latest = NULL;
    size_t end = at;

    for (; end < report->count && strcmp(report->counters[end].resource, resource) == 0; end++) {
        const struct rs_counter *counter = &report->counters[end];
        const char *line = NULL;
        if (event_line(counter))
            continue;
        if (has_text(counter) && latest)
            line = counter->value ? ", {name} {value}" : ", {name} none";
        else if (has_text(counter))
            line =
                counter->value ? "  {resource:11} {name} {value}" : "  {resource:11} {name} none";
        add_counter(counters, counter, is_label, line);
        if (line)
            latest = counters->last;
    }
    if (latest)
        latest->end = "\n";
    for (size_t i = at; i < end; i++) {
        const char *line = event_line(&report->counters[i]);
        if (line)
            add_counter(counters, &report->counters[i], is_label,
                        report->counters[i].value ? line : NULL);
    }
    return end;
}

void rs_report_fill_counters(struct rs_node *object, const struct rs_report *report,
                             bool labels_resource)
{
    struct rs_node *counters = rs_node_list(object, "counters");

    for (size_t i = 0; i < report->count;)
        i = add_resource(counters, report, i, labels_resource);
}

static void add_stack(struct rs_node *devices, const struct rs_report_subject *subject,
                      const struct rs_reported_stack *stack)
{
    struct rs_node *node = rs_node_object(devices, NULL);

    rs_node_count(node, "device", (uint64_t)stack->device)->is_label = true;
    rs_node_word(node, "kind", rs_kind_names[stack->kind])->is_label = true;
    rs_node_text(node, "expression", subject->expression(stack));
    node->line = rs_document_format(
        node->document, "rmmshim[[{pid}]]: {program}, device {device}%s: {expression}\n",
        rs_kind_texts[stack->kind]);
    rs_report_fill_counters(node, &stack->report, false);
}

/* ---- phases ---- */

static void add_phase_memory(struct rs_node *list, enum rs_kind kind, int device,
                             const struct rs_phase_memory *memory)
{
    struct rs_node *node = rs_node_object(list, NULL);

    rs_node_count(node, "device", (uint64_t)device);
    rs_node_word(node, "kind", rs_kind_names[kind]);
    rs_node_bytes(node, "peak_bytes", memory->peak_bytes);
    rs_node_bytes(node, "peak_live_bytes", memory->peak_live_bytes);
    rs_node_bytes(node, "allocated_bytes", memory->entered_bytes);
    rs_node_count(node, "allocations", memory->entered_blocks);
    rs_node_bytes(node, "thread_peak_bytes", memory->thread_peak_bytes);
    rs_node_bytes(node, "thread_allocated_bytes", memory->thread_entered_bytes);
    rs_node_count(node, "thread_allocations", memory->thread_entered_blocks);
    rs_node_bytes(node, "peak_charged_bytes", memory->peak_charged_bytes);
    node->line = rs_document_format(
        list->document,
        "rmmshim[[{pid}]]: {program}, phase {name}: device {device}%s, entries {entries}, added "
        "up to {peak_bytes}, used up to {peak_live_bytes}, allocated {allocated_bytes} in "
        "{allocations} blocks, {thread_allocated_bytes} by its own thread[, held up to "
        "{peak_charged_bytes}]\n",
        rs_kind_texts[kind]);
}

/* Each kind of memory of each device that the phase took any of. */
static void add_phase(struct rs_node *phases, unsigned index, const struct rs_phase *phase)
{
    struct rs_node *node = rs_node_object(phases, NULL), *list;
    struct rs_phase_memory memory;
    struct rs_phase same;

    rs_node_text(node, "name", phase->name);
    rs_node_count(node, "entries", phase->entries);
    rs_node_count(node, "open", phase->open);
    rs_node_count(node, "unended", phase->unended);
    list = rs_node_list(node, "memory");
    list->end =
        "[{memory!}rmmshim[[{pid}]]: {program}, phase {name}: entries {entries}, no memory\n]";
    for (int device = 0; device < RS_DEVICES_MAX; device++)
        for (enum rs_kind kind = 0; kind < RS_KINDS; kind++)
            if (rs_phase_get(index, kind, device, &same, &memory) &&
                (memory.peak_live_bytes || memory.entered_blocks || memory.peak_charged_bytes))
                add_phase_memory(list, kind, device, &memory);
}

static void add_phases(struct rs_node *root)
{
    struct rs_node *phases = NULL;
    struct rs_phase phase;

    for (unsigned i = 0; rs_phase_get(i, RS_KIND_DEVICE, 0, &phase, NULL); i++) {
        phases = phases ? phases : rs_node_list(root, "phases");
        add_phase(phases, i, &phase);
    }
}

/* ---- the whole ---- */

void rs_report_fill(struct rs_node *process, const struct rs_report_subject *of)
{
    struct rs_node *list;

    rs_node_count(process, "schema", 1);
    rs_node_count(process, "pid", (uint64_t)of->process);
    rs_node_text(process, "program", of->program)->is_label = true;
    list = rs_node_list(process, "devices");
    for (size_t i = 0; i < of->stack_count; i++)
        add_stack(list, of, &of->stacks[i]);
    if (of->is_this_process)
        add_phases(process);
    list = rs_node_list(process, "left_out");
    for (size_t i = 0; i < of->left_out_count; i++)
        rs_node_text(list, NULL, of->left_out[i]);
}

static struct rs_document document; /* one is written at a time */

/* What a user reads of each kind and device, and with `has_counters` all counters. */
static void fill_metrics(struct rs_node *process, const struct rs_report_subject *of,
                         bool has_counters)
{
    struct rs_node *devices;

    rs_node_text(process, "program", of->program)->is_label = true;
    if (*of->rank)
        rs_node_text(process, "rank", of->rank)->is_label = true;
    devices = rs_node_list(process, "devices");
    for (size_t i = 0; i < of->stack_count; i++) {
        const struct rs_reported_stack *stack = &of->stacks[i];
        struct rs_usage usage = rs_usage_of(&stack->report, of->counts(stack));
        struct rs_node *node = rs_node_object(devices, NULL);
        rs_node_count(node, "device", (uint64_t)stack->device)->is_label = true;
        rs_node_word(node, "kind", rs_kind_names[stack->kind])->is_label = true;
        rs_usage_put(node, &usage);
        if (has_counters)
            rs_report_fill_counters(node, &stack->report, false);
    }
}

void rs_report_put(struct rs_page *to, enum rs_statistics_format format,
                   const struct rs_report_subject *of)
{
    bool has_counters = format == RS_STATISTICS_PROMETHEUS_ALL;

    rs_document_begin(&document);
    if (has_counters || format == RS_STATISTICS_PROMETHEUS) {
        fill_metrics(&document.root, of, has_counters);
        rs_document_put_metrics(to, &document.root);
    } else {
        rs_report_fill(&document.root, of);
        if (format == RS_STATISTICS_JSON)
            rs_document_put_json(to, &document.root, false);
        else
            rs_document_put_text(to, &document.root);
    }
    rs_document_release(&document);
}
