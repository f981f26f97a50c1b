/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a report of statistics as text, JSON or Prometheus text, for this process
 * (report/report.c) or for one that has ended (tool/run/gone.c). */
#pragma once

#include "config/config.h"
#include "report/document.h"
#include "resource/report.h"

#include <stdbool.h>
#include <stddef.h>

/* The folded counters of all stacks of one kind on one device. */
struct rs_reported_stack {
    enum rs_kind kind;
    int device;
    struct rs_report report;
};

/* The process that a report is about, and its counters. */
struct rs_report_subject {
    int process;
    const char *program, *rank; /* the rank in its job; empty: unknown */
    const struct rs_reported_stack *stacks;
    size_t stack_count;
    const char *(*expression)(const struct rs_reported_stack *stack);
    /* What counts the program's own allocations (RS_PROGRAM), of the stack's kind and device. */
    const struct rs_report *(*counts)(const struct rs_reported_stack *stack);
    /* Names of resources left out, as a thread held their lock at exit. */
    const char *const *left_out;
    size_t left_out_count;
    bool is_this_process; /* the report has its phases (context/phase.h), which no other process
                             can read */
};

/* Adds all counters to an object, as the list "counters"; each is a metric, which has the label
 * `resource` too where that is asked. */
void rs_report_fill_counters(struct rs_node *object, const struct rs_report *report,
                             bool labels_resource);

/* Adds the report to a document's object. */
void rs_report_fill(struct rs_node *process, const struct rs_report_subject *of);

/* Writes the report about `of` to the page `to`.  Not thread safe. */
void rs_report_put(struct rs_page *to, enum rs_statistics_format format,
                   const struct rs_report_subject *of);
