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
static uint64_t used_peak(const struct rs_report *report, const struct usage *usage)
{
    uint64_t served = rs_max(program_value(report, "peak"), program_value(report, "past_peak"));
    uint64_t both = served + account_value(report, "unserved_peak");

    return rs_max(rs_max(usage->live, served),
                  rs_min(both, usage->held_peak + usage->spilled_peak));
}

struct usage usage_of(const struct rs_report *report)
{
    uint64_t live = program_value(report, "live") + account_value(report, "unserved");
    uint64_t spilled = rs_report_value(report, "fallback", "live_second", 0);
    struct usage usage = {
        .live = live,
        .held = held(report, "charged", "held", live),
        .waiting = rs_report_value(report, "reuse", "quarantined", 0),
        .limit = account_value(report, "limit"),
        .refusals = program_value(report, "refused"),
        .internal_refusals =
            account_value(report, "internal_refusals") + sum_of_leaves(report, "internal_refusals"),
        .allocations = program_value(report, "allocations"),
        .live_allocations = program_value(report, "live_allocations"),
        .allocated = program_value(report, "total"),
        .spilled = spilled,
        .spilled_peak = rs_max(spilled, rs_report_value(report, "fallback", "live_second_peak", 0)),
    };

    usage.held_peak = rs_max(usage.held, held(report, "charged_peak", "held_peak", live));
    usage.peak = used_peak(report, &usage);
    usage.cached = usage.held - rs_min(usage.held, usage.live - rs_min(usage.live, spilled));
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
    to->held_peak += from->held_peak;
    to->refusals += from->refusals;
    to->internal_refusals += from->internal_refusals;
    to->allocations += from->allocations;
    to->live_allocations += from->live_allocations;
    to->allocated += from->allocated;
    to->spilled += from->spilled;
    to->spilled_peak += from->spilled_peak;
}
