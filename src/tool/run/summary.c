/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/summary.h"

#include "base/check.h"
#include "context/block_counts.h"
#include "report/usage.h"
#include "tool/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 16 };

/* ---- a device ---- */

static struct summary_device *device_of(struct summary_process *process, int number)
{
    size_t at = 0;

    while (at < process->device_count && process->devices[at].device < number)
        at++;
    if (at < process->device_count && process->devices[at].device == number)
        return &process->devices[at];
    memmove(&process->devices[at + 1], &process->devices[at],
            (process->device_count - at) * sizeof(*process->devices));
    process->device_count++;
    process->devices[at] = (struct summary_device){.device = number};
    return &process->devices[at];
}

/* The account is the device's and stands at one of its stacks. */
static void add_stack(struct summary_device *device, const struct rs_reported_stack *stack,
                      const struct rs_published_stack *from)
{
    struct rs_usage usage = rs_usage_of(&stack->report, &stack->report);

    device->limit_bytes = rs_max(device->limit_bytes, usage.limit);
    device->refused += usage.refused;
    device->internal_refusals += usage.internal_refusals;
    device->allocations += usage.allocations;
    device->unfreed_bytes += rs_report_value(&stack->report, RS_PROGRAM, "live", 0);
    device->unfreed_blocks += usage.live_allocations;
    device->waited_ns += rs_report_value(&stack->report, "reuse", "waited", 0);
    if (stack->kind != RS_KIND_PINNED) {
        device->used_peak_bytes += usage.used_peak;
        device->spilled_peak_bytes += usage.spilled_peak;
        if (stack->kind == RS_KIND_DEVICE) /* managed memory is charged there, too */
            device->held_peak_bytes = usage.held_peak;
    }
    if (from)
        device->total_bytes = rs_max(device->total_bytes, from->device_total_bytes);
}

/* ---- a process ---- */

static bool make_room(struct summary *summary)
{
    size_t capacity = summary->capacity ? 2 * summary->capacity : FIRST_CAPACITY;
    struct summary_process *more;

    if (summary->count < summary->capacity)
        return true;
    more = realloc(summary->processes, capacity * sizeof(*more));
    if (!more)
        return false;
    summary->processes = more;
    summary->capacity = capacity;
    return true;
}

/* A page without counters is of a process that allocated nothing. */
static bool add_stacks(struct summary_process *process, struct publication *page, const void *file)
{
    bool has_counters = publication_read(page, file);

    memcpy(process->program, page->program, sizeof(process->program));
    memcpy(process->rank, page->rank, sizeof(process->rank));
    if (!has_counters)
        return true;
    process->devices = calloc(page->count, sizeof(*process->devices));
    for (size_t i = 0; process->devices && i < page->count; i++)
        add_stack(device_of(process, page->stacks[i].device), &page->stacks[i],
                  publication_stack(page, &page->stacks[i]));
    return process->devices;
}

void summary_add(struct summary *summary, int number, bool has_ended, const void *file,
                 const char *script)
{
    struct summary_process process = {.number = number, .has_ended = has_ended};
    struct publication *page = calloc(1, sizeof(*page));

    snprintf(process.script, sizeof(process.script), "%s", script);
    if (page && make_room(summary) && add_stacks(&process, page, file))
        summary->processes[summary->count++] = process;
    else
        summary->is_short = true;
    if (page)
        publication_release(page);
    free(page);
}

const char *summary_name(const struct summary_process *process)
{
    return *process->script ? process->script : process->program;
}

bool summary_is_incomplete(const struct summary *summary)
{
    return summary->is_short || summary->missed || summary->unserved_count;
}

void summary_clear(struct summary *summary)
{
    for (size_t i = 0; i < summary->count; i++)
        free(summary->processes[i].devices);
    free(summary->processes);
    free(summary->unserved);
    *summary = (struct summary){.count = 0};
}

uint64_t summary_used_peak(const struct summary_process *process)
{
    uint64_t peak = 0;

    for (size_t i = 0; i < process->device_count; i++)
        peak = rs_max(peak, process->devices[i].used_peak_bytes);
    return peak;
}

uint64_t summary_held_peak(const struct summary_process *process)
{
    uint64_t peak = 0;

    for (size_t i = 0; i < process->device_count; i++)
        peak = rs_max(peak, process->devices[i].held_peak_bytes);
    return peak;
}
