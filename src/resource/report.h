/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of resources: each resource adds its own, one emitter writes text, JSON and Prometheus.
 * Counters of stacks that are gone are folded into the ones of their device. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How the values of two resources of one name become one, and how it is written.  Of resources side
 * by side each may have been at its peak while the others were at theirs, so the sum of their peaks
 * is the most that it can have been, and never less than what is live; resources of which one was
 * gone before the other came have the higher of the two. */
enum rs_counter_kind {
    RS_COUNTER_TOTAL,   /* grows only: sum */
    RS_COUNTER_LIVE,    /* goes up and down: sum, nothing of what is gone */
    RS_COUNTER_PEAK,    /* the most that a live one was: sum, the largest over what is gone */
    RS_COUNTER_LARGEST, /* goes up and down: the largest, nothing of what is gone */
};

enum rs_counter_unit { RS_UNIT_BYTES, RS_UNIT_COUNT, RS_UNIT_NANOSECONDS };

/* `count` fields of 8 bytes, stride_bytes apart: their sum, times scale. */
struct rs_term {
    const volatile void *first;
    uint32_t count, stride_bytes;
    int64_t scale;
};

enum { RS_TERMS_MAX = 24 };

struct rs_counter {
    const char *resource; /* static text: the descriptor's name */
    const char *name;     /* static text: snake_case without unit, "live", "peak", "allocations" */
    enum rs_counter_kind kind;
    enum rs_counter_unit unit;
    uint64_t value;

    /* Where it comes from, for who reads it later (report/publish.h): `past`, of stacks that are
     * gone, and the sum of what the terms are then. */
    uint64_t past;
    struct rs_term terms[RS_TERMS_MAX];
    unsigned term_count;
    bool is_computed; /* from other things, too: it cannot be read later */
};

/* All zero is empty.  The table grows as it needs, without malloc: a report may be made where that
 * is locked (report/report.c). */
struct rs_report {
    struct rs_counter *counters;
    size_t count, capacity;
    bool is_short; /* there was no memory for all */
};

/* Empties it, and keeps or gives back its memory. */
void rs_report_clear(struct rs_report *report);
void rs_report_release(struct rs_report *report);

/* Adds a counter, or folds it into the one of the same resource, name and unit, of a resource side
 * by side.  A computed value, which is what it is now; or the sum of fields, which lie in published
 * memory as long as the resource does (shared/published.h) where who holds that memory is to read
 * them; or one field. */
void rs_report_add(struct rs_report *report, const char *resource, const char *name,
                   enum rs_counter_kind kind, enum rs_counter_unit unit, uint64_t value);
void rs_report_add_sum(struct rs_report *report, const char *resource, const char *name,
                       enum rs_counter_kind kind, enum rs_counter_unit unit,
                       const struct rs_term *terms, unsigned term_count);

/* A field of 8 bytes, atomic or not. */
#define RS_REPORT_PLACE(field)                                                                     \
    ((const volatile void *)((uintptr_t) & (field) + 0 * sizeof(char[sizeof(field) == 8 ? 1 : -1])))
#define RS_TERM(field, times)                                                                      \
    (struct rs_term)                                                                               \
    {                                                                                              \
        RS_REPORT_PLACE(field), 1, 0, times                                                        \
    }
#define rs_report_add_field(report, resource, name, kind, unit, field)                             \
    rs_report_add_sum(report, resource, name, kind, unit, &RS_TERM(field, 1), 1)

/* What the fields are now; never below zero, which threads that are half way could make it. */
uint64_t rs_terms_value(const struct rs_term *terms, unsigned term_count);

/* Folds in all of another's counters, of resources side by side. */
void rs_report_fold(struct rs_report *report, const struct rs_report *other);

/* Folds in the counters of stacks that are gone, whose peaks were before those in the report. */
void rs_report_fold_gone(struct rs_report *report, const struct rs_report *gone);

/* Folds in nothing but the peaks, in the same way: what was side by side until a part of it went.
 */
void rs_report_raise_peaks(struct rs_report *report, const struct rs_report *together);

/* The value of a counter, or `missing`. */
uint64_t rs_report_value(const struct rs_report *report, const char *resource, const char *name,
                         uint64_t missing);
