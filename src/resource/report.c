/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/report.h"

#include "base/check.h"

#include <string.h>

static struct rs_counter *find(const struct rs_report *report, const char *resource,
                               const char *name)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        if (strcmp(counter->resource, resource) == 0 && strcmp(counter->name, name) == 0)
            return (struct rs_counter *)(uintptr_t)counter;
    }
    return NULL;
}

void rs_report_add(struct rs_report *report, const char *resource, const char *name,
                   enum rs_counter_kind kind, enum rs_counter_unit unit, uint64_t value)
{
    struct rs_counter *counter = find(report, resource, name);

    if (!counter) {
        RS_ASSERT(report->count < RS_REPORT_COUNTERS_MAX);
        if (report->count == RS_REPORT_COUNTERS_MAX)
            return;
        report->counters[report->count++] = (struct rs_counter){resource, name, kind, unit, value};
        return;
    }
    if (kind != RS_COUNTER_PEAK)
        counter->value += value;
    else if (value > counter->value)
        counter->value = value;
}

void rs_report_fold_gone(struct rs_report *report, const struct rs_report *gone)
{
    for (size_t i = 0; i < gone->count; i++) {
        const struct rs_counter *counter = &gone->counters[i];
        rs_report_add(report, counter->resource, counter->name, counter->kind, counter->unit,
                      counter->kind == RS_COUNTER_LIVE ? 0 : counter->value);
    }
}

uint64_t rs_report_value(const struct rs_report *report, const char *resource, const char *name,
                         uint64_t missing)
{
    const struct rs_counter *counter = find(report, resource, name);

    return counter ? counter->value : missing;
}
