/* SPDX-License-Identifier: Apache-2.0 */
#include "report/usage.h"

#include "base/check.h"
#include "context/block_counts.h"
#include "resource/resource.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

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
static uint64_t used_peak(const struct rs_report *report, const struct rs_report *program,
                          const struct rs_usage *usage)
{
    uint64_t served = rs_max(program_value(program, "peak"), program_value(program, "past_peak"));
    uint64_t both = served + account_value(report, "unserved_peak");

    return rs_max(rs_max(usage->used, served),
                  rs_min(both, usage->held_peak + usage->spilled_peak));
}

struct rs_usage rs_usage_of(const struct rs_report *report, const struct rs_report *program)
{
    uint64_t used = program_value(program, "live") + account_value(report, "unserved");
    uint64_t spilled = rs_report_value(report, "fallback", "live_second", 0);
    struct rs_usage usage = {
        .used = used,
        .held = held(report, "charged", "held", used),
        .waiting = rs_report_value(report, "reuse", "quarantined", 0),
        .limit = account_value(report, "limit"),
        .job_limit = account_value(report, "job_limit"),
        .refused = program_value(program, "refused"),
        .internal_refusals =
            account_value(report, "internal_refusals") + sum_of_leaves(report, "internal_refusals"),
        .allocations = program_value(program, "allocations"),
        .live_allocations = program_value(program, "live_allocations"),
        .allocated = program_value(program, "total"),
        .spilled = spilled,
        .spilled_peak = rs_max(spilled, rs_report_value(report, "fallback", "live_second_peak", 0)),
    };

    usage.held_peak = rs_max(usage.held, held(report, "charged_peak", "held_peak", used));
    usage.used_peak = used_peak(report, program, &usage);
    usage.cached = usage.held - rs_min(usage.held, usage.used - rs_min(usage.used, spilled));
    usage.cached -= rs_min(usage.cached, usage.waiting);
    return usage;
}

void rs_usage_add(struct rs_usage *to, const struct rs_usage *from)
{
    to->limit = to->limit && from->limit ? to->limit + from->limit : 0;
    to->job_limit = 0;
    to->used += from->used;
    to->used_peak += from->used_peak;
    to->held += from->held;
    to->held_peak += from->held_peak;
    to->waiting += from->waiting;
    to->cached += from->cached;
    to->refused += from->refused;
    to->internal_refusals += from->internal_refusals;
    to->allocations += from->allocations;
    to->live_allocations += from->live_allocations;
    to->allocated += from->allocated;
    to->spilled += from->spilled;
    to->spilled_peak += from->spilled_peak;
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
