/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of resources.  Each resource adds its own, and report/counters.h writes them as text,
 * JSON and Prometheus text.  When a stack is dropped, its counters are folded into a report of its
 * device and kind of memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the values of a counter are folded into one if several resources have the same name.  Peaks
 * of resources that are live together add up, since they may have been reached at the same time.
 * If one resource was gone before the other was made, the higher of their peaks counts. */
enum rs_counter_kind {
    RS_COUNTER_TOTAL,   /* only grows; values add up */
    RS_COUNTER_LIVE,    /* goes up and down; values add up, except those of dropped stacks */
    RS_COUNTER_PEAK,    /* the highest value of a LIVE counter; the result is the sum of the peaks
                           of live stacks, or the peak of dropped stacks if that is higher */
    RS_COUNTER_LARGEST, /* goes up and down; the largest value counts, except those of dropped
                           stacks */
};

enum rs_counter_unit { RS_UNIT_BYTES, RS_UNIT_COUNT, RS_UNIT_NANOSECONDS };

/* A part of a counter's value: the sum of `count` fields of 8 bytes, stride_bytes apart, times
 * scale. */
struct rs_term {
    const volatile void *first;
    uint32_t count, stride_bytes;
    int64_t scale;
};

enum { RS_TERMS_MAX = 24 };

/* One counter: its name, its value, and where the value comes from. */
struct rs_counter {
    const char *resource; /* static text: the descriptor's name */
    const char *name;     /* static text: snake_case without unit, "live", "peak", "allocations" */
    enum rs_counter_kind kind;
    enum rs_counter_unit unit;
    uint64_t value;

    /* For a process that computes the value later (report/publish.h).  The value is then the sum of
     * the terms plus `past`; of a peak it is the larger of the two. */
    uint64_t past; /* the part of dropped stacks */
    struct rs_term terms[RS_TERMS_MAX];
    unsigned term_count;
    bool is_computed; /* some part of the value is no field in memory, so that another process
                         cannot read it */
};

/* A growing table of counters; all zero is empty.  Its memory is not malloc's: a report may be made
 * while malloc is locked (report/report.c). */
struct rs_report {
    struct rs_counter *counters;
    size_t count, capacity;
    bool is_short; /* some counters are missing, since there was no memory for them */
};

/* Both empty the report: rs_report_clear keeps its memory, rs_report_release gives it back. */
void rs_report_clear(struct rs_report *report);
void rs_report_release(struct rs_report *report);

/* Add a counter.  If the report has one of the same resource and name, the value is folded into it
 * as for two resources that are live together.  rs_report_add takes a computed value,
 * rs_report_add_sum a sum of fields, and rs_report_add_field (below) one field.  If another process
 * is to read the counter, the fields must lie in published memory (shared/published.h) as long as
 * the resource lives. */
void rs_report_add(struct rs_report *report, const char *resource, const char *name,
                   enum rs_counter_kind kind, enum rs_counter_unit unit, uint64_t value);
void rs_report_add_sum(struct rs_report *report, const char *resource, const char *name,
                       enum rs_counter_kind kind, enum rs_counter_unit unit,
                       const struct rs_term *terms, unsigned term_count);

/* The address of a field, which must have 8 bytes and may be atomic. */
#define RS_REPORT_PLACE(field)                                                                     \
    ((const volatile void *)((uintptr_t) & (field) + 0 * sizeof(char[sizeof(field) == 8 ? 1 : -1])))
#define RS_TERM(field, times)                                                                      \
    (struct rs_term)                                                                               \
    {                                                                                              \
        RS_REPORT_PLACE(field), 1, 0, times                                                        \
    }
#define rs_report_add_field(report, resource, name, kind, unit, field)                             \
    rs_report_add_sum(report, resource, name, kind, unit, &RS_TERM(field, 1), 1)

/* A counter that is a field of 8 bytes in the structure of a resource. */
struct rs_counter_row {
    const char *name;
    enum rs_counter_kind kind;
    enum rs_counter_unit unit;
    size_t offset;
};

#define RS_COUNTER_ROW(name, kind, unit, type, field)                                              \
    {                                                                                              \
        name, RS_COUNTER_##kind, RS_UNIT_##unit,                                                   \
            offsetof(type, field) + 0 * sizeof(char[sizeof(((type *)0)->field) == 8 ? 1 : -1])     \
    }
#define RS_COUNTER_END                                                                             \
    {                                                                                              \
        .name = NULL                                                                               \
    }

/* Adds the counters of a table, which ends with RS_COUNTER_END, from the resource at `object`. */
void rs_report_add_rows(struct rs_report *report, const char *resource, const void *object,
                        const struct rs_counter_row *rows);

/* Returns the present value of a sum of terms; 0 for a negative sum, which can be seen while
 * another thread is in the middle of an update. */
uint64_t rs_terms_value(const struct rs_term *terms, unsigned term_count);

/* Folds in all counters of another report, as for resources that are live together. */
void rs_report_fold(struct rs_report *report, const struct rs_report *other);

/* Folds in the counters of dropped stacks: totals add up, the higher peak counts, and counters of
 * other kinds add 0. */
void rs_report_fold_gone(struct rs_report *report, const struct rs_report *gone);

/* Folds in the peaks alone: the higher peak counts.  `together`: the sums over stacks that were
 * live together until one of them was dropped. */
void rs_report_raise_peaks(struct rs_report *report, const struct rs_report *together);

/* Returns the value of a counter, or `missing` where the report lacks it. */
uint64_t rs_report_value(const struct rs_report *report, const char *resource, const char *name,
                         uint64_t missing);
