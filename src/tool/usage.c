/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/usage.h"

#include "base/arithmetic.h"
#include "context/block_counts.h"
#include "resource/resource.h"

#include <stdbool.h>
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

/* What an account charges begins with the process; not every leaf can tell what it holds. */
static uint64_t held(const struct rs_report *report, uint64_t live)
{
    uint64_t charged = rs_report_value(report, "account", "charged", UINT64_MAX);

    return charged != UINT64_MAX ? charged : rs_max(live, sum_of_leaves(report, "held"));
}

struct usage usage_of(const struct rs_report *report)
{
    uint64_t live = program_value(report, "live");
    uint64_t peak = rs_max(program_value(report, "peak"), program_value(report, "past_peak"));
    struct usage usage = {
        .live = live,
        .held = held(report, live),
        .waiting = rs_report_value(report, "reuse", "quarantined", 0),
        .peak = rs_max(live, peak),
        .limit = rs_report_value(report, "account", "limit", 0),
        .refusals = rs_report_value(report, "account", "refusals", 0) +
                    sum_of_leaves(report, "driver_refusals"),
        .allocations = program_value(report, "allocations"),
        .live_allocations = program_value(report, "live_allocations"),
        .allocated = program_value(report, "total"),
        .spilled = rs_report_value(report, "fallback", "live_second", 0),
    };

    usage.cached = usage.held - rs_min(usage.held, usage.live);
    usage.cached -= rs_min(usage.cached, usage.waiting);
    return usage;
}

void usage_add(struct usage *to, const struct usage *from)
{
    to->limit = to->limit && from->limit ? to->limit + from->limit : 0;
    to->live += from->live;
    to->held += from->held;
    to->waiting += from->waiting;
    to->cached += from->cached;
    to->peak += from->peak;
    to->refusals += from->refusals;
    to->allocations += from->allocations;
    to->live_allocations += from->live_allocations;
    to->allocated += from->allocated;
    to->spilled += from->spilled;
}
