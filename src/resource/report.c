/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of counters, and how they fold into one. */
#include "resource/report.h"

#include "base/check.h"

#include <string.h>
#include <sys/mman.h>

enum { FIRST_BYTES = 64 << 10 }; /* more than the counters of a usual stack need */

static bool grow_report(struct rs_report *report)
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
    /* The new table is set before the old one is unmapped, since a signal handler may read the
     * table in between. */
    report->counters = grown;
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

static struct rs_counter *find_counter(const struct rs_report *report, const char *resource,
                                       const char *name)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct rs_counter *counter = &report->counters[i];
        if (strcmp(counter->resource, resource) == 0 && strcmp(counter->name, name) == 0)
            return (struct rs_counter *)(uintptr_t)counter;
    }
    return NULL;
}

/* Returns the counter of this resource and name, made with value 0 if it is new; NULL when out of
 * memory. */
static struct rs_counter *find_or_add_counter(struct rs_report *report,
                                              const struct rs_counter *like)
{
    struct rs_counter *counter = find_counter(report, like->resource, like->name);

    if (counter)
        return counter;
    if (report->count == report->capacity && !grow_report(report)) {
        report->is_short = true;
        return NULL;
    }
    counter = &report->counters[report->count++];
    *counter = (struct rs_counter){like->resource, like->name, like->kind, like->unit, .value = 0};
    return counter;
}

static void raise_value(uint64_t *value, uint64_t to)
{
    if (to > *value)
        *value = to;
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

/* Folds in a counter of a resource that is live together with the resources of the report. */
static void fold_counter(struct rs_report *report, const struct rs_counter *other)
{
    struct rs_counter *counter = find_or_add_counter(report, other);

    if (!counter)
        return;
    if (other->kind == RS_COUNTER_LARGEST)
        raise_value(&counter->value, other->value);
    else
        counter->value += other->value;
    counter->past += other->past;
    fold_terms(counter, other);
}

void rs_report_add(struct rs_report *report, const char *resource, const char *name,
                   enum rs_counter_kind kind, enum rs_counter_unit unit, uint64_t value)
{
    fold_counter(report,
                 &(struct rs_counter){resource, name, kind, unit, value, .is_computed = true});
}

uint64_t rs_terms_value(const struct rs_term *terms, unsigned term_count)
{
    /* Unsigned, since a signed sum must not overflow: the fields may lie in a damaged file of
     * another process and have any values. */
    uint64_t sum = 0;

    for (unsigned i = 0; i < term_count; i++) {
        const volatile char *at = terms[i].first;
        uint64_t fields = 0;
        for (uint32_t left = terms[i].count; left > 0; left--, at += terms[i].stride_bytes)
            fields += __atomic_load_n((const volatile uint64_t *)at, __ATOMIC_ACQUIRE);
        sum += fields * (uint64_t)terms[i].scale;
    }
    return (int64_t)sum > 0 ? sum : 0;
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

    RS_ASSERT(term_count <= RS_TERMS_MAX);
    memcpy(counter.terms, terms, term_count * sizeof(terms[0]));
    fold_counter(report, &counter);
}

void rs_report_add_rows(struct rs_report *report, const char *resource, const void *object,
                        const struct rs_counter_row *rows)
{
    for (; rows->name; rows++) {
        struct rs_term term = {(const char *)object + rows->offset, 1, 0, 1};
        rs_report_add_sum(report, resource, rows->name, rows->kind, rows->unit, &term, 1);
    }
}

void rs_report_fold(struct rs_report *report, const struct rs_report *other)
{
    for (size_t i = 0; i < other->count; i++)
        fold_counter(report, &other->counters[i]);
    report->is_short |= other->is_short;
}

static void fold_past(struct rs_report *report, const struct rs_report *past, bool with_totals)
{
    for (size_t i = 0; i < past->count; i++) {
        const struct rs_counter *counter = &past->counters[i];
        struct rs_counter *sum = find_or_add_counter(report, counter);
        if (sum && counter->kind == RS_COUNTER_PEAK) {
            raise_value(&sum->value, counter->value);
            raise_value(&sum->past, counter->value);
        } else if (sum && counter->kind == RS_COUNTER_TOTAL && with_totals) {
            sum->value += counter->value;
            sum->past += counter->value;
        }
    }
    report->is_short |= past->is_short;
}

void rs_report_fold_gone(struct rs_report *report, const struct rs_report *gone)
{
    fold_past(report, gone, true);
}

void rs_report_raise_peaks(struct rs_report *report, const struct rs_report *together)
{
    fold_past(report, together, false);
}

uint64_t rs_report_value(const struct rs_report *report, const char *resource, const char *name,
                         uint64_t missing)
{
    const struct rs_counter *counter = find_counter(report, resource, name);

    return counter ? counter->value : missing;
}
