/* SPDX-License-Identifier: Apache-2.0 */
#include "report/counters.h"

#include "base/check.h"
#include "base/lock.h"
#include "config/mode.h"
#include "context/block_counts.h"
#include "context/end.h"
#include "context/limit.h"
#include "context/scope.h"
#include "context/visit.h"
#include "resource/resource.h"

#include <stddef.h>
#include <string.h>

/* ---- gathering ---- */

static void collect_counters(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct rs_reported_stack *of = data;

    if (stack->kind == of->kind && stack->environment.device == of->device)
        rs_mr_report(mr, &of->report);
}

static void collect_gone(void *data, const struct rs_report *gone)
{
    struct rs_reported_stack *of = data;

    rs_report_fold_gone(&of->report, gone);
}

/* Gathers the counters of one kind and device over all contexts. At exit those of ended contexts
 * are reported even if another thread never releases the contexts' lock. */
static void collect_stacks(struct rs_reported_stack *stack, enum rs_kind kind, int device,
                           bool also_unused)
{
    stack->kind = kind;
    stack->device = device;
    rs_report_clear(&stack->report);
    if (rs_lock_is_bound()) {
        rs_context_each_stack(collect_counters, stack);
        collect_gone(stack, rs_context_folded_report(kind, device));
    } else {
        rs_context_each_stack_ever(kind, device, collect_counters, collect_gone, stack);
    }
    if (kind == RS_KIND_DEVICE) {
        rs_limit_report(device, &stack->report, also_unused);
        rs_limit_report_refused(device, &stack->report);
    }
    rs_block_counts_report(kind, device, &stack->report);
}

/* The devices and kinds that have stacks. One walk over all contexts finds them; a search for each
 * device and kind would take as many walks. */
struct used {
    uint64_t devices[RS_KINDS]; /* one bit per device */
    size_t stack_count;
};

static void note_used(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct used *used = data;

    (void)mr;
    used->devices[stack->kind] |= (uint64_t)1 << stack->environment.device % RS_DEVICES_MAX;
    used->stack_count++;
}

static bool may_have_counters(const struct used *used, int kind, int device)
{
    return used->devices[kind] & (uint64_t)1 << device ||
           rs_context_has_folded((enum rs_kind)kind, device) ||
           (kind == RS_KIND_DEVICE && rs_limit_is_used(device));
}

void rs_gather(struct rs_gathered *gathered, bool also_unused)
{
    struct used used = {.stack_count = 0};

    gathered->count = 0;
    gathered->is_short = false;
    rs_context_each_stack(note_used, &used);
    gathered->made_stacks = used.stack_count;
    for (int device = 0; device < RS_DEVICES_MAX; device++) {
        for (int kind = 0; kind < RS_KINDS; kind++) {
            if (!may_have_counters(&used, kind, device))
                continue;
            struct rs_reported_stack *stack = &gathered->stacks[gathered->count];
            RS_ASSERT(gathered->count < RS_ARRAY_LENGTH(gathered->stacks));
            collect_stacks(stack, (enum rs_kind)kind, device, also_unused);
            gathered->is_short |= stack->report.is_short;
            gathered->count += stack->report.count > 0;
        }
    }
}

const char *rs_gathered_expression(const struct rs_reported_stack *stack,
                                   char text[RS_EXPRESSION_TEXT_BYTES])
{
    const struct rs_expression *expression =
        rs_config_stack(&rs_config, stack->kind, stack->device);

    return expression ? rs_expression_format(expression, NULL, text) : "";
}

/* ---- what they amount to ---- */

/* Returns the memory resource of that name; NULL if there is none, or the name is an alias. */
static const struct rs_mr_descriptor *resource_named(const char *resource)
{
    const struct rs_mr_descriptor *descriptor = rs_mr_find(resource, resource + strlen(resource));

    return descriptor && strcmp(descriptor->name, resource) == 0 ? descriptor : NULL;
}

static bool is_leaf(const char *resource)
{
    const struct rs_mr_descriptor *descriptor = resource_named(resource);

    return descriptor && descriptor->upstream_count == 0;
}

static uint64_t sum_of_leaves(const struct rs_report *report, const char *name)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < report->count; i++)
        if (strcmp(report->counters[i].name, name) == 0 && is_leaf(report->counters[i].resource))
            sum += report->counters[i].value;
    return sum;
}

static uint64_t program_value(const struct rs_report *report, const char *name)
{
    return rs_report_value(report, RS_PROGRAM, name, 0);
}

static uint64_t account_value(const struct rs_report *report, const char *name)
{
    return rs_report_value(report, "account", name, 0);
}

/* Returns the account's counter `charged`. Without an account it returns the sum of the counter
 * `leaves` of all leaves, but at least at_least, since not every leaf can tell what it holds. */
static uint64_t held(const struct rs_report *report, const char *charged, const char *leaves,
                     uint64_t at_least)
{
    uint64_t bytes = rs_report_value(report, "account", charged, UINT64_MAX);

    return bytes != UINT64_MAX ? bytes : rs_max(at_least, sum_of_leaves(report, leaves));
}

/* Returns an upper bound of the program's peak. Served and unserved memory may have had their peaks
 * at different times. Together they were never more than what was held and spilled. */
static uint64_t used_peak(const struct rs_report *report, const struct rs_usage *usage)
{
    uint64_t served = rs_max(program_value(report, "peak"), program_value(report, "past_peak"));
    uint64_t both = served + account_value(report, "unserved_peak");

    return rs_max(rs_max(usage->used, served),
                  rs_min(both, usage->held_peak + usage->spilled_peak));
}

struct rs_usage rs_usage_of(const struct rs_report *report)
{
    uint64_t used = program_value(report, "live") + account_value(report, "unserved");
    uint64_t spilled = rs_report_value(report, "fallback", "live_second", 0);
    struct rs_usage usage = {
        .used = used,
        .held = held(report, "charged", "held", used),
        .waiting = rs_report_value(report, "reuse", "quarantined", 0),
        .limit = account_value(report, "limit"),
        .job_limit = account_value(report, "job_limit"),
        .refused = program_value(report, "refused"),
        .internal_refusals =
            account_value(report, "internal_refusals") + sum_of_leaves(report, "internal_refusals"),
        .allocations = program_value(report, "allocations"),
        .live_allocations = program_value(report, "live_allocations"),
        .allocated = program_value(report, "total"),
        .spilled = spilled,
        .spilled_peak = rs_max(spilled, rs_report_value(report, "fallback", "live_second_peak", 0)),
    };

    usage.held_peak = rs_max(usage.held, held(report, "charged_peak", "held_peak", used));
    usage.used_peak = used_peak(report, &usage);
    usage.cached = usage.held - rs_min(usage.held, usage.used - rs_min(usage.used, spilled));
    usage.cached -= rs_min(usage.cached, usage.waiting);
    return usage;
}

void rs_usage_add(struct rs_usage *to, const struct rs_usage *from)
{
    uint64_t limit = to->limit && from->limit ? to->limit + from->limit : 0;
    uint64_t *sums = (void *)to;
    const uint64_t *more = (const void *)from;

    for (size_t i = 0; i < sizeof(*to) / sizeof(*sums); i++) /* all fields are uint64_t */
        sums[i] += more[i];
    to->limit = limit;
    to->job_limit = 0;
}

uint64_t rs_usage_least_limit(const struct rs_usage *usage)
{
    return usage->limit && usage->job_limit ? rs_min(usage->limit, usage->job_limit)
                                            : rs_max(usage->limit, usage->job_limit);
}

/* ---- as fields and metrics ---- */

static const struct field {
    const char *name;
    size_t offset; /* of the field in struct rs_usage */
    enum rs_value value;
    bool may_be_none;        /* 0 means that there is no limit; no sample is written */
    struct rs_metric metric; /* without a name the field is no metric */
} fields[] = {
/* clang-format off */
#define BYTES(field, name, help) {#field, offsetof(struct rs_usage, field), RS_VALUE_BYTES, false, {name, help, false}}
#define MAYBE(field, name, help) {#field, offsetof(struct rs_usage, field), RS_VALUE_BYTES, true, {name, help, false}}
#define TOTAL(field, unit, name, help) \
    {#field, offsetof(struct rs_usage, field), RS_VALUE_##unit, false, {name, help, true}}
    /* clang-format on */
    BYTES(used, "rmmshim_used_bytes",
          "Memory that the program has allocated and not yet freed, in bytes."),
    BYTES(used_peak, "rmmshim_used_peak_bytes",
          "The most memory that the program had allocated at one time, in bytes."),
    BYTES(held, "rmmshim_held_bytes",
          "Memory that the process has taken from the driver, in use or kept for reuse, in bytes."),
    BYTES(held_peak, "rmmshim_held_peak_bytes",
          "The most memory that the process had taken from the driver at one time, in bytes."),
    BYTES(cached, "rmmshim_cached_bytes",
          "Unused memory that rmmshim keeps for the program's next allocations, in bytes."),
    BYTES(waiting, "rmmshim_waiting_bytes",
          "Freed memory that the GPU may still be using, in bytes."),
    MAYBE(limit, "rmmshim_limit_bytes",
          "The most memory that the process may take from the driver (RMM_LIMIT), in bytes."),
    MAYBE(job_limit, "rmmshim_job_limit_bytes",
          "The most memory that all processes of a job together may take from the driver "
          "(RMM_LIMIT_JOB), in bytes."),
    BYTES(spilled, "rmmshim_spilled_bytes",
          "Memory in use that came from the fallback, because the device's memory or the limit did "
          "not suffice, in bytes."),
    BYTES(spilled_peak, "rmmshim_spilled_peak_bytes",
          "The most memory that was allocated from the fallback at one time, in bytes."),
    TOTAL(refused, COUNT, "rmmshim_refused_total",
          "Out-of-memory errors that the program received."),
    TOTAL(internal_refusals, COUNT, NULL, NULL),
    TOTAL(allocations, COUNT, "rmmshim_allocations_total",
          "Allocations that the program has made."),
    TOTAL(allocated, BYTES, "rmmshim_allocated_bytes_total",
          "All memory that the program has allocated since it started, freed memory included, in "
          "bytes."),
#undef BYTES
#undef MAYBE
#undef TOTAL
};

void rs_usage_put(struct rs_node *object, const struct rs_usage *usage)
{
    for (size_t i = 0; i < RS_ARRAY_LENGTH(fields); i++) {
        const struct field *field = &fields[i];
        const uint64_t *number = (const void *)((const char *)usage + field->offset);
        struct rs_node *node = rs_node_number(object, field->name, field->value, *number);
        if (field->metric.name && (*number || !field->may_be_none))
            node->metric = &field->metric;
    }
}

const struct rs_metric *rs_usage_metric(size_t index)
{
    return index < RS_ARRAY_LENGTH(fields) ? &fields[index].metric : NULL;
}

/* Returns the row of a counter, or the last row, which has no name. */
static const struct rs_counter_help *help_row(const char *resource, const char *name)
{
    const struct rs_counter_help *row = rs_counter_helps;

    while (row->name && (strcmp(name, row->name) != 0 ||
                         (row->resource && strcmp(resource, row->resource) != 0)))
        row++;
    return row;
}

bool rs_counter_is_known(const char *resource, const char *name)
{
    const struct rs_counter_help *row = help_row(resource, name);

    return row->name && (row->resource || resource_named(resource));
}

/* ---- in a report ---- */

/* Returns the metric of a counter, named as Prometheus asks for: "rmmshim_pool_held_bytes",
 * "rmmshim_pool_growths_total". */
static const struct rs_metric *metric_of(struct rs_node *value, const struct rs_counter *counter)
{
    static const char *const units[] = {"_bytes", "", "_seconds"};
    bool is_total = counter->kind == RS_COUNTER_TOTAL;
    bool is_sum = is_total && strcmp(counter->name, "total") == 0;
    const char *name = rs_document_format(value->document, "rmmshim_%s%s%s%s%s", counter->resource,
                                          is_sum ? "" : "_", is_sum ? "" : counter->name,
                                          units[counter->unit], is_total ? "_total" : "");

    return rs_document_metric(value->document, name,
                              help_row(counter->resource, counter->name)->help, is_total);
}

static void add_counter_node(struct rs_node *counters, const struct rs_counter *counter,
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

/* ---- counters as text, which leaves out zeroes; the other formats have all ---- */

/* Returns the line of text for a counter of events that a reader should know of, such as waits;
 * NULL for any other counter. */
static const char *event_line(const struct rs_counter *counter)
{
#define EVENTS "  {resource}: {value} "
    static const char *const lines[][2] = {
        {"fallbacks", EVENTS "request{value||s} served from its second memory resource\n"},
        {"waits",
         EVENTS "time{value||s} an allocation waited until the GPU was done with freed memory\n"},
        {"waits_in_vain", EVENTS "time{value||s} an allocation stopped waiting for freed memory "
                                 "that the GPU used for too long, "
                                 "and took other memory or failed\n"},
        {"full_waits",
         EVENTS "free{value||s} or trim{value||s} waited for the GPU to finish all work\n"},
        {"written_before",
         EVENTS "block{value||s} with a wrong write before {value|its|their} first byte\n"},
        {"written_past_end",
         EVENTS "block{value||s} with a wrong write after {value|its|their} last byte\n"},
        {"written_after_free",
         EVENTS "block{value||s} with a wrong write after {value|its|their} free\n"},
        {"unchecked", EVENTS "block{value||s} not checked for wrong writes, because the driver "
                             "could not read or fill {value|it|them}\n"},
    };

    if (strcmp(counter->resource, RS_PROGRAM) == 0 && strcmp(counter->name, "refused") == 0)
        return "  program: {value} out-of-memory error{value||s}\n";
    for (size_t i = 0; i < RS_ARRAY_LENGTH(lines); i++)
        if (strcmp(counter->name, lines[i][0]) == 0)
            return lines[i][1];
    return NULL;
}

/* True when the text has the counter. It leaves out zeroes, but not limits, and refusals after
 * which the program may have got its memory otherwise, which a reader would take for errors. */
static bool has_text(const struct rs_counter *counter)
{
    const char *name = counter->name;

    return strcmp(name, "failures") != 0 && strcmp(name, "internal_refusals") != 0 &&
           strcmp(name, "refusals_expected") != 0 && (counter->value || strcmp(name, "limit") == 0);
}

/* With hides_program, the only counter of the program that is shown is that of refusals. */
static bool is_shown(const struct rs_counter *counter, bool hides_program)
{
    return !hides_program || strcmp(counter->resource, RS_PROGRAM) != 0 ||
           strcmp(counter->name, "refused") == 0;
}

/* Adds the counters of one resource, from index `at` on, and returns the index after them. Their
 * text is one line, "pool held 4.00 GiB, chunks 2", and then a line for each counter of events. */
static size_t add_resource(struct rs_node *counters, const struct rs_report *report, size_t at,
                           bool is_label, bool hides_program)
{
    const char *resource = report->counters[at].resource;
    struct rs_node *latest = NULL;
    size_t end = at;

    for (; end < report->count && strcmp(report->counters[end].resource, resource) == 0; end++) {
        const struct rs_counter *counter = &report->counters[end];
        const char *line = NULL;
        if (event_line(counter) || !is_shown(counter, hides_program))
            continue;
        if (has_text(counter) && latest)
            line = counter->value ? ", {name} {value}" : ", {name} none";
        else if (has_text(counter))
            line =
                counter->value ? "  {resource:11} {name} {value}" : "  {resource:11} {name} none";
        add_counter_node(counters, counter, is_label, line);
        if (line)
            latest = counters->last;
    }
    if (latest)
        latest->end = "\n";
    for (size_t i = at; i < end; i++) {
        const char *line = event_line(&report->counters[i]);
        if (line)
            add_counter_node(counters, &report->counters[i], is_label,
                             report->counters[i].value ? line : NULL);
    }
    return end;
}

void rs_report_fill_counters(struct rs_node *object, const struct rs_report *report,
                             bool labels_resource, bool hides_program)
{
    struct rs_node *counters = rs_node_list(object, "counters");

    for (size_t i = 0; i < report->count;)
        i = add_resource(counters, report, i, labels_resource, hides_program);
}

/* ---- phases ---- */

static void add_phase_memory(struct rs_node *list, enum rs_kind kind, int device,
                             const struct rmmshim_phase *memory)
{
    struct rs_node *node = rs_node_object(list, NULL);

    rs_node_count(node, "device", (uint64_t)device);
    rs_node_word(node, "kind", rs_kind_names[kind]);
    rs_node_bytes(node, "peak_bytes", memory->peak_bytes);
    rs_node_bytes(node, "peak_live_bytes", memory->peak_used_bytes);
    rs_node_bytes(node, "allocated_bytes", memory->allocated_bytes);
    rs_node_count(node, "allocations", memory->allocations);
    rs_node_bytes(node, "thread_peak_bytes", memory->thread_peak_bytes);
    rs_node_bytes(node, "thread_allocated_bytes", memory->thread_allocated_bytes);
    rs_node_count(node, "thread_allocations", memory->thread_allocations);
    rs_node_bytes(node, "peak_charged_bytes", memory->peak_charged_bytes);
    node->line = rs_document_format(
        list->document,
        "rmmshim[[{pid}]]: {program}, phase {name} (entered {entries} time{entries||s}), device "
        "{device}%s: used up to {peak_live_bytes} (up to {peak_bytes} more than when the phase "
        "began); allocated {allocated_bytes} in {allocations} block{allocations||s}, "
        "{thread_allocated_bytes} of it by the thread that began the phase[; held up to "
        "{peak_charged_bytes}]\n",
        rs_kind_texts[kind]);
}

/* Adds a phase, with one entry for each device and kind of memory that it allocated. */
static void add_phase(struct rs_node *phases, unsigned index, const struct rmmshim_phase *phase)
{
    struct rs_node *node = rs_node_object(phases, NULL), *list;
    struct rmmshim_phase memory;

    rs_node_text(node, "name", phase->name);
    rs_node_count(node, "entries", phase->entries);
    rs_node_count(node, "open", phase->open);
    rs_node_count(node, "unended", phase->unended);
    list = rs_node_list(node, "memory");
    list->end = "[{memory!}rmmshim[[{pid}]]: {program}, phase {name} (entered {entries} "
                "time{entries||s}): no GPU memory was allocated\n]";
    for (int device = 0; device < RS_DEVICES_MAX; device++)
        for (enum rs_kind kind = 0; kind < RS_KINDS; kind++)
            if (rs_phase_get(index, kind, device, &memory) &&
                (memory.peak_used_bytes || memory.allocations || memory.peak_charged_bytes))
                add_phase_memory(list, kind, device, &memory);
}

static void add_phases(struct rs_node *root)
{
    struct rs_node *phases = NULL;
    struct rmmshim_phase phase;

    for (unsigned i = 0; rs_phase_get(i, RS_KIND_DEVICE, 0, &phase); i++) {
        phases = phases ? phases : rs_node_list(root, "phases");
        add_phase(phases, i, &phase);
    }
}

/* ---- the whole ---- */

static bool has_shown(const struct rs_report *report, bool hides_program)
{
    for (size_t i = 0; i < report->count; i++)
        if (is_shown(&report->counters[i], hides_program))
            return true;
    return false;
}

static void add_reported_stack(struct rs_node *devices, const struct rs_report_subject *of,
                               const struct rs_reported_stack *stack,
                               enum rs_statistics_format format)
{
    static char text[RS_EXPRESSION_TEXT_BYTES];
    struct rs_node *node = rs_node_object(devices, NULL);
    struct rs_usage usage;

    rs_node_count(node, "device", (uint64_t)stack->device)->is_label = true;
    rs_node_word(node, "kind", rs_kind_names[stack->kind])->is_label = true;
    if (format >= RS_STATISTICS_PROMETHEUS) {
        usage = rs_usage_of(&stack->report);
        rs_usage_put(node, &usage);
    } else {
        rs_node_text(node, "expression",
                     stack->expression ? stack->expression : rs_gathered_expression(stack, text));
        node->line = rs_document_format(
            node->document,
            "rmmshim[[{pid}]]: {program}, device {device}%s: memory resource {expression}\n",
            rs_kind_texts[stack->kind]);
    }
    if (format != RS_STATISTICS_PROMETHEUS)
        rs_report_fill_counters(node, &stack->report, false, of->hides_program);
}

/* Both Prometheus formats have the numbers of struct rs_usage for each kind and device; the fuller
 * one also has every counter. */
void rs_report_fill(struct rs_node *process, const struct rs_report_subject *of,
                    enum rs_statistics_format format)
{
    struct rs_node *list;

    rs_node_count(process, "schema", 1);
    rs_node_count(process, "pid", (uint64_t)of->process);
    rs_node_text(process, "program", of->program)->is_label = true;
    if (format >= RS_STATISTICS_PROMETHEUS && *of->rank)
        rs_node_text(process, "rank", of->rank)->is_label = true;
    list = rs_node_list(process, "devices");
    for (size_t i = 0; i < of->stack_count; i++)
        if (has_shown(&of->stacks[i].report, of->hides_program))
            add_reported_stack(list, of, &of->stacks[i], format);
    if (of->is_this_process)
        add_phases(process);
    list = rs_node_list(process, "left_out");
    for (size_t i = 0; i < of->left_out_count; i++)
        rs_node_text(list, NULL, of->left_out[i]);
}

void rs_report_put(struct rs_page *to, enum rs_statistics_format format,
                   const struct rs_report_subject *of)
{
    static struct rs_document document;
    bool is_empty = true;

    for (size_t i = 0; i < of->stack_count; i++)
        is_empty &= !has_shown(&of->stacks[i].report, of->hides_program);
    if (is_empty)
        return; /* no device was used */
    rs_document_begin(&document);
    rs_report_fill(&document.root, of, format);
    if (format >= RS_STATISTICS_PROMETHEUS)
        rs_document_put_metrics(to, &document.root);
    else if (format == RS_STATISTICS_JSON)
        rs_document_put_json(to, &document.root, false);
    else
        rs_document_put_text(to, &document.root);
    rs_document_release(&document);
}
