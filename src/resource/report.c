/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/report.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_BYTES = 8 << 10 }; /* more than a usual stack's counters */

static bool grow(struct rs_report *report)
{
    size_t bytes = report->capacity * sizeof(*report->counters);
    size_t grown_bytes = bytes ? 2 * bytes : FIRST_BYTES;
    void *old = report->counters;
    void *grown =
        mmap(NULL, grown_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (grown == MAP_FAILED)
        return false;
    if (bytes)
        memcpy(grown, report->counters, bytes);
    report->counters = grown; /* before the old ones go: who interrupts this may read them */
    report->capacity = grown_bytes / sizeof(*report->counters);
    if (bytes)
        munmap(old, bytes);
    return true;
}

void rs_report_clear(struct rs_report *report)
{
    report->count = 0;
    report->is_short = false;
}

void rs_report_release(struct rs_report *report)
{
    if (report->capacity)
        munmap(report->counters, report->capacity * sizeof(*report->counters));
    *report = (struct rs_report){.count = 0};
}

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
        if (report->count == report->capacity && !grow(report)) {
            report->is_short = true;
            return;
        }
        report->counters[report->count++] = (struct rs_counter){resource, name, kind, unit, value};
        return;
    }
    if (kind != RS_COUNTER_PEAK)
        counter->value += value;
    else if (value > counter->value)
        counter->value = value;
}

static void fold(struct rs_report *report, const struct rs_report *other, bool is_gone)
{
    for (size_t i = 0; i < other->count; i++) {
        const struct rs_counter *counter = &other->counters[i];
        rs_report_add(report, counter->resource, counter->name, counter->kind, counter->unit,
                      is_gone && counter->kind == RS_COUNTER_LIVE ? 0 : counter->value);
    }
    report->is_short |= other->is_short;
}

void rs_report_fold(struct rs_report *report, const struct rs_report *other)
{
    fold(report, other, false);
}

void rs_report_fold_gone(struct rs_report *report, const struct rs_report *gone)
{
    fold(report, gone, true);
}

uint64_t rs_report_value(const struct rs_report *report, const char *resource, const char *name,
                         uint64_t missing)
{
    const struct rs_counter *counter = find(report, resource, name);

    return counter ? counter->value : missing;
}
