/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/report.h"

#include "base/check.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_BYTES = 64 << 10 }; /* more than a usual stack's counters */

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

static void fold_value(enum rs_counter_kind kind, uint64_t *into, uint64_t value)
{
    if (kind != RS_COUNTER_PEAK)
        *into += value;
    else if (value > *into)
        *into = value;
}

static void fold_terms(struct rs_counter *into, const struct rs_counter *other)
{
    into->is_computed |= other->is_computed;
    for (unsigned i = 0; i < other->term_count; i++) {
        if (into->term_count == RS_TERMS_MAX)
            into->is_computed = true;
        else
            into->terms[into->term_count++] = other->terms[i];
    }
}

static void fold_counter(struct rs_report *report, const struct rs_counter *other)
{
    struct rs_counter *counter = find(report, other->resource, other->name);

    if (counter) {
        fold_value(other->kind, &counter->value, other->value);
        fold_value(other->kind, &counter->past, other->past);
        fold_terms(counter, other);
    } else if (report->count < report->capacity || grow(report)) {
        report->counters[report->count++] = *other;
    } else {
        report->is_short = true;
    }
}

void rs_report_add(struct rs_report *report, const char *resource, const char *name,
                   enum rs_counter_kind kind, enum rs_counter_unit unit, uint64_t value)
{
    fold_counter(report,
                 &(struct rs_counter){resource, name, kind, unit, value, .is_computed = true});
}

uint64_t rs_terms_value(const struct rs_term *terms, unsigned term_count)
{
    int64_t sum = 0;

    for (unsigned i = 0; i < term_count; i++) {
        const volatile char *at = terms[i].first;
        int64_t fields = 0;
        for (uint32_t left = terms[i].count; left > 0; left--, at += terms[i].stride_bytes)
            fields += __atomic_load_n((const volatile int64_t *)at, __ATOMIC_ACQUIRE);
        sum += fields * terms[i].scale;
    }
    return sum > 0 ? (uint64_t)sum : 0;
}

void rs_report_add_sum(struct rs_report *report, const char *resource, const char *name,
                       enum rs_counter_kind kind, enum rs_counter_unit unit,
                       const struct rs_term *terms, unsigned term_count)
{
    struct rs_counter counter = {resource,
                                 name,
                                 kind,
                                 unit,
                                 .value = rs_terms_value(terms, term_count),
                                 .term_count = term_count};

    RS_ASSERT(term_count <= RS_TERMS_MAX && (kind != RS_COUNTER_PEAK || term_count == 1));
    memcpy(counter.terms, terms, term_count * sizeof(terms[0]));
    fold_counter(report, &counter);
}

void rs_report_fold(struct rs_report *report, const struct rs_report *other)
{
    for (size_t i = 0; i < other->count; i++)
        fold_counter(report, &other->counters[i]);
    report->is_short |= other->is_short;
}

void rs_report_fold_gone(struct rs_report *report, const struct rs_report *gone)
{
    for (size_t i = 0; i < gone->count; i++) {
        const struct rs_counter *counter = &gone->counters[i];
        uint64_t value = counter->kind == RS_COUNTER_LIVE ? 0 : counter->value;
        fold_counter(report, &(struct rs_counter){counter->resource, counter->name, counter->kind,
                                                  counter->unit, value, .past = value});
    }
    report->is_short |= gone->is_short;
}

uint64_t rs_report_value(const struct rs_report *report, const char *resource, const char *name,
                         uint64_t missing)
{
    const struct rs_counter *counter = find(report, resource, name);

    return counter ? counter->value : missing;
}
