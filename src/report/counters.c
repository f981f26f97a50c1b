/* SPDX-License-Identifier: Apache-2.0 */
#include "report/counters.h"

#include "base/check.h"
#include "base/lock.h"
#include "config/mode.h"
#include "context/block_counts.h"
#include "context/end.h"
#include "context/limit.h"
#include "context/phase.h"
#include "context/visit.h"
#include "resource/resource.h"

#include <stddef.h>
#include <string.h>

/* ---- gathering ---- */

static void collect(void *data, struct rs_stack *stack, struct rs_mr *mr)
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

/* Gathers the counters of all contexts, alive and ended.  At exit those of ended contexts are
 * reported even if another thread holds the contexts' lock for ever. */
static void collect_stacks(struct rs_reported_stack *stack, enum rs_kind kind, int device,
                           bool also_unused)
{
    stack->kind = kind;
    stack->device = device;
    rs_report_clear(&stack->report);
    if (rs_lock_is_bound()) {
        rs_context_each_stack(collect, stack);
        collect_gone(stack, rs_context_folded_report(kind, device));
    } else {
        rs_context_each_stack_ever(kind, device, collect, collect_gone, stack);
    }
    if (kind == RS_KIND_DEVICE) {
        rs_limit_report(device, &stack->report, also_unused);
        rs_limit_report_refused(device, &stack->report);
    }
    rs_block_counts_report(kind, device, &stack->report);
}

/* The devices and kinds that have stacks: a search for one of them walks over all contexts. */
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

static bool is_leafs(const struct rs_counter *counter, const char *name)
{
    const char *resource = counter->resource;
    const struct rs_mr_descriptor *descriptor;

    if (strcmp(counter->name, name) != 0)
        return false;
    descriptor = rs_mr_find(resource, resource + strlen(resource));
    return descriptor && descriptor->upstream_count == 0;
}

static uint64_t sum_of_leaves(const struct rs_report *report, const char *name)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < report->count; i++)
        if (is_leafs(&report->counters[i], name))
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

/* What an account charges begins with the process; not every leaf can tell what it holds. */
static uint64_t held(const struct rs_report *report, const char *charged, const char *leaves,
                     uint64_t at_least)
{
    uint64_t bytes = rs_report_value(report, "account", charged, UINT64_MAX);

    return bytes != UINT64_MAX ? bytes : rs_max(at_least, sum_of_leaves(report, leaves));
}

/* What was served and what was not need not have been at their peaks together, and never were more
 * than was held and spilled. */
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

    for (size_t i = 0; i < sizeof(*to) / sizeof(*sums); i++) /* all fields are of that type */
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
    size_t offset; /* in struct rs_usage */
    enum rs_value value;
    bool may_be_none;        /* where it is 0 there is no sample */
    struct rs_metric metric; /* without a name: it is none */
} fields[] = {
/* clang-format off */
#define BYTES(field, name, help) {#field, offsetof(struct rs_usage, field), RS_VALUE_BYTES, false, {name, help, false}}
#define MAYBE(field, name, help) {#field, offsetof(struct rs_usage, field), RS_VALUE_BYTES, true, {name, help, false}}
#define TOTAL(field, unit, name, help) \
    {#field, offsetof(struct rs_usage, field), RS_VALUE_##unit, false, {name, help, true}}
    /* clang-format on */
    BYTES(used, "rmmshim_used_bytes", "Memory that the program has, in bytes."),
    BYTES(used_peak, "rmmshim_used_peak_bytes", "The most that the program had at once, in bytes."),
    BYTES(held, "rmmshim_held_bytes",
          "Memory taken from the driver, which the program has or which is kept for it, in bytes."),
    BYTES(held_peak, "rmmshim_held_peak_bytes",
          "The most that was taken from the driver at once, in bytes."),
    BYTES(cached, "rmmshim_cached_bytes", "Memory kept for the program, free for use, in bytes."),
    BYTES(waiting, "rmmshim_waiting_bytes",
          "Freed memory that the GPU may still be using, in bytes."),
    MAYBE(limit, "rmmshim_limit_bytes",
          "The most that the process may take from the driver (RMM_LIMIT), in bytes."),
    MAYBE(job_limit, "rmmshim_job_limit_bytes",
          "The most that all processes of its job may take together (RMM_LIMIT_JOB), in bytes."),
    BYTES(spilled, "rmmshim_spilled_bytes",
          "Memory that the program has and that did not fit into the device, in bytes."),
    BYTES(spilled_peak, "rmmshim_spilled_peak_bytes",
          "The most that did not fit into the device at once, in bytes."),
    TOTAL(refused, COUNT, "rmmshim_refused_total",
          "Out-of-memory errors that the program received."),
    TOTAL(internal_refusals, COUNT, NULL, NULL),
    TOTAL(allocations, COUNT, "rmmshim_allocations_total", "Allocations of the program."),
    TOTAL(allocated, BYTES, "rmmshim_allocated_bytes_total",
          "Memory that the program has allocated since it began, in bytes."),
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

/* tests/integration/test_reports.py misses a counter that has none. */
const struct rs_counter_help rs_counter_helps[] = {
    /* the program's */
    {"program", "live",
     "Bytes that the program has allocated and not freed, as it asked for them."},
    {"program", "live_allocations", "Blocks that the program has allocated and not freed."},
    {"program", "allocations", "Allocations of the program that rmmshim served."},
    {"program", "total", "Bytes that rmmshim has handed to the program since it began."},
    {"program", "peak", "Most bytes that the program had allocated, since the latest reset."},
    {"program", "past_peak", "Most bytes that the program had allocated, before the latest reset."},
    {"program", "refused", "Out-of-memory errors that the program received, whoever refused."},

    /* the device's account */
    {"account", "limit", "The process's limit on this device; 0 is none."},
    {"account", "charged",
     "Bytes that the process holds of this device, as the limit counts them."},
    {"account", "charged_peak", "Most bytes that the process has held of this device."},
    {"account", "internal_refusals",
     "Requests that the limit refused, also those served another way."},
    {"account", "served", "Bytes held of this device for what rmmshim serves."},
    {"account", "unserved", "Bytes that the program has allocated and rmmshim does not serve."},
    {"account", "unserved_peak",
     "Most bytes that the program had allocated and rmmshim did not serve."},
    {"account", "driver", "Bytes held by allocations that the driver served itself."},
    {"account", "managed", "Bytes held by managed memory that the driver served itself."},
    {"account", "arrays", "Bytes held by CUDA arrays."},
    {"account", "vmm", "Bytes held by memory that the program made with cuMemCreate."},
    {"account", "stream_ordered", "Bytes held by the driver's pools of cudaMallocAsync."},
    {"account", "graphs", "Bytes held by memory nodes of CUDA graphs."},
    {"account", "stream_ordered_live", "Bytes of cudaMallocAsync that the program has not freed."},
    {"account", "stream_ordered_blocks",
     "Blocks of cudaMallocAsync that the program has not freed."},
    {"account", "stream_ordered_allocations",
     "Allocations by cudaMallocAsync that the driver served."},

    /* reuse */
    {"reuse", "quarantined", "Freed memory that the GPU may still be using, in bytes."},
    {"reuse", "quarantined_blocks", "Freed blocks that the GPU may still be using."},
    {"reuse", "kept", "Freed memory that waits for the next request of its size, in bytes."},
    {"reuse", "epochs_sealed",
     "Groups of freed blocks for which an event was recorded on the GPU."},
    {"reuse", "epochs_retired", "Groups of freed blocks whose event on the GPU has completed."},
    {"reuse", "waits", "Allocations that waited for the GPU to finish with freed memory."},
    {"reuse", "waits_in_vain", "Allocations that waited for the GPU and gave up the wait."},
    {"reuse", "full_waits", "Frees that waited for all work of the GPU, as cudaFree does."},
    {"reuse", "waited", "Time for which allocations waited for the GPU, in seconds."},
    {"reuse", "stream_reuses",
     "Blocks reused on the stream on which they were freed, without a wait."},

    /* resources with counters of their own */
    {"fallback", "live_first", "Bytes in use from the first resource."},
    {"fallback", "live_first_peak", "Most bytes in use from the first resource."},
    {"fallback", "live_first_blocks", "Blocks in use from the first resource."},
    {"fallback", "live_second",
     "Bytes in use that did not fit into the first resource and spilled."},
    {"fallback", "live_second_peak", "Most bytes in use that had spilled."},
    {"fallback", "live_second_blocks", "Blocks in use that did not fit into the first resource."},
    {"fallback", "fallbacks",
     "Requests that the second resource served, as the first was out of memory."},
    {"fallback", "refusals_expected",
     "Requests sent to the second resource without asking the first."},
    {"headroom", "preferred_on_device", "Bytes that were placed on the GPU."},
    {"headroom", "preferred_on_host", "Bytes that were placed on the host, to leave the GPU room."},
    {"prefetch", "prefetches",
     "Blocks of managed memory that were moved to the GPU as they were allocated."},
    {"prefetch", "prefetched",
     "Bytes of managed memory that were moved to the GPU as they were allocated."},
    {"aligned", "aligned", "Requests that were enlarged to align their blocks."},
    {"aligned", "extra", "Bytes taken beyond what was asked for, to align blocks."},
    {"limiting", "limit", "The most that this resource hands out, in bytes."},
    {"poison", "written_before", "Blocks with a stray write before their beginning."},
    {"poison", "written_past_end", "Blocks with a stray write past their end."},
    {"poison", "written_after_free", "Blocks with a write after they had been freed."},
    {"poison", "unchecked", "Blocks that could not be checked for stray writes."},
    {"poison", "kept", "Freed memory that is watched for stray writes, in bytes."},
    {"poison", "kept_blocks", "Freed blocks that are watched for stray writes."},
    {"binning", "bins", "Bins, of one block size each."},
    {"virtual", "reserved", "Bytes of address space that are reserved; they take no memory."},
    {"virtual", "moved",
     "Bytes of memory that were mapped to another address instead of newly taken."},

    /* what several resources count */
    {NULL, "held", "Bytes that this resource has taken from the one below it, or from the driver."},
    {NULL, "held_peak", "Most bytes that this resource had taken."},
    {NULL, "live", "Bytes that this resource has handed out and that are in use."},
    {NULL, "live_peak", "Most bytes of this resource that were in use."},
    {NULL, "live_allocations", "Blocks of this resource that are in use."},
    {NULL, "peak", "Most bytes of this resource that were in use."},
    {NULL, "peak_allocations", "Most blocks of this resource that were in use."},
    {NULL, "total", "Bytes that this resource has handed out since the process began."},
    {NULL, "allocations", "Requests that this resource has served."},
    {NULL, "frees", "Blocks that were given back to this resource."},
    {NULL, "failures",
     "Requests that this resource could not serve, also those served another way."},
    {NULL, "internal_refusals",
     "Requests refused by the limit or a resource, also those served another way."},
    {NULL, "driver_allocations", "Calls of the driver that allocated memory."},
    {NULL, "driver_frees", "Calls of the driver that freed memory."},
    {NULL, "free", "Bytes that this resource holds and that nobody uses."},
    {NULL, "largest_free",
     "The largest unused piece of memory that this resource holds, in bytes."},
    {NULL, "chunks", "Large pieces of memory that this resource holds and cuts blocks from."},
    {NULL, "growths", "Times that this resource took more memory after its initial size."},
    {NULL, "chunk_returns", "Large pieces of memory that this resource gave back."},
    {NULL, NULL, NULL},
};

static const char *help_of(const struct rs_counter *counter)
{
    for (const struct rs_counter_help *row = rs_counter_helps; row->name; row++)
        if (strcmp(counter->name, row->name) == 0 &&
            (!row->resource || strcmp(counter->resource, row->resource) == 0))
            return row->help;
    return "A counter that this version of rmmshim does not know.";
}

/* ---- in a report ---- */

/* A name in base units: "rmmshim_pool_held_bytes", "rmmshim_pool_growths_total". */
static const struct rs_metric *metric_of(struct rs_node *value, const struct rs_counter *counter)
{
    static const char *const units[] = {"_bytes", "", "_seconds"};
    bool is_total = counter->kind == RS_COUNTER_TOTAL;
    bool is_sum = is_total && strcmp(counter->name, "total") == 0;
    const char *name = rs_document_format(value->document, "rmmshim_%s%s%s%s%s", counter->resource,
                                          is_sum ? "" : "_", is_sum ? "" : counter->name,
                                          units[counter->unit], is_total ? "_total" : "");

    return rs_document_metric(value->document, name, help_of(counter), is_total);
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

/* False for what went wrong inside, while the program may have got its memory another way: a reader
 * would take it for errors of the program's. */
static bool has_text(const struct rs_counter *counter)
{
    const char *name = counter->name;

    return strcmp(name, "failures") != 0 && strcmp(name, "internal_refusals") != 0 &&
           strcmp(name, "refusals_expected") != 0 && (counter->value || strcmp(name, "limit") == 0);
}

/* What the program was refused is told at exit too. */
static bool is_shown(const struct rs_counter *counter, bool hides_program)
{
    return !hides_program || strcmp(counter->resource, RS_PROGRAM) != 0 ||
           strcmp(counter->name, "refused") == 0;
}

/* Adds the counters of one resource, from `at` on, whose text is one line: "pool  held 4.00 GiB,
 * chunks 2"; and those of events behind them.  Returns the index after them. */
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
                             bool labels_resource, bool hides_program)
{
    struct rs_node *counters = rs_node_list(object, "counters");

    for (size_t i = 0; i < report->count;)
        i = add_resource(counters, report, i, labels_resource, hides_program);
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

static bool has_shown(const struct rs_report *report, bool hides_program)
{
    for (size_t i = 0; i < report->count; i++)
        if (is_shown(&report->counters[i], hides_program))
            return true;
    return false;
}

static void add_stack(struct rs_node *devices, const struct rs_report_subject *of,
                      const struct rs_reported_stack *stack, enum rs_statistics_format format)
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
            node->document, "rmmshim[[{pid}]]: {program}, device {device}%s: {expression}\n",
            rs_kind_texts[stack->kind]);
    }
    if (format != RS_STATISTICS_PROMETHEUS)
        rs_report_fill_counters(node, &stack->report, false, of->hides_program);
}

/* Metrics are what a user reads of each kind and device, and where they are all, each counter. */
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
            add_stack(list, of, &of->stacks[i], format);
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
