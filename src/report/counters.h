/* SPDX-License-Identifier: Apache-2.0 */
/* The counters of all stacks of a process, with those of ended contexts folded in: gathered, summed
 * up in a few numbers, and written as text, JSON or Prometheus text.  For this process
 * (report/report.c), or for one whose page was read (tool/process.h). */
#pragma once

#include "config/config.h"
#include "report/document.h"
#include "resource/expression.h"
#include "resource/report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- gathering ---- */

/* The folded counters of all stacks of one kind on one device. */
struct rs_reported_stack {
    enum rs_kind kind;
    int device;
    struct rs_report report;
    const char *expression; /* that its stacks are made from; NULL: this process's settings tell */
};

/* The counters of one gathering. */
struct rs_gathered {
    struct rs_reported_stack stacks[RS_DEVICES_MAX * RS_KINDS]; /* sorted by device, then by kind */
    size_t count;       /* the number of entries in `stacks` */
    size_t made_stacks; /* the number of stacks that the entries come from */
    bool is_short;      /* there was no memory for some counters */
};

/* Gathers anew into an object that is all zero before the first time; with also_unused accounts
 * without a count yet, too, for readers of published memory.  Uses no malloc, and takes only
 * bounded locks where base/lock.h bounds them.  Thread safe for different objects. */
void rs_gather(struct rs_gathered *gathered, bool also_unused);

/* Writes the expression that the stacks are made from to `text`, and returns it. */
const char *rs_gathered_expression(const struct rs_reported_stack *stack,
                                   char text[RS_EXPRESSION_TEXT_BYTES]);

/* ---- what they amount to ---- */

/* Bytes, unless it says otherwise. */
struct rs_usage {
    uint64_t used; /* what the program has allocated and not freed, as it asked for it, served or
                      not */
    uint64_t used_peak; /* an upper bound where not all was served */
    uint64_t held;      /* taken from the driver: what an account has charged, else the leaves' */
    uint64_t held_peak;
    uint64_t waiting;           /* freed, and the GPU may still use it */
    uint64_t cached;            /* the rest of what is held */
    uint64_t limit, job_limit;  /* 0: none */
    uint64_t refused;           /* out-of-memory errors that the program received */
    uint64_t internal_refusals; /* by the limit and by leaves, also where the program was served
                                   another way; one request may be refused several times */
    uint64_t allocations, live_allocations; /* of the program, numbers */
    uint64_t allocated;                     /* since the process began */
    uint64_t spilled, spilled_peak;         /* used, in the second upstream of a `fallback` */
};

struct rs_usage rs_usage_of(const struct rs_report *report);

/* Adds up two; a limit only where both have one, and a job's is not added.  The sum of peaks is the
 * most that the highest can have been. */
void rs_usage_add(struct rs_usage *to, const struct rs_usage *from);

/* The limit that holds: the lower one; 0: none. */
uint64_t rs_usage_least_limit(const struct rs_usage *usage);

/* Adds the numbers to an object, as fields and as metrics. */
void rs_usage_put(struct rs_node *object, const struct rs_usage *usage);

/* The metric of a field; without a name where the field is none.  NULL behind the last field. */
const struct rs_metric *rs_usage_metric(size_t index);

/* A sentence about each counter, ended by a row without a name.  The first row that fits a counter
 * counts; a NULL resource is any. */
extern const struct rs_counter_help {
    const char *resource, *name, *help;
} rs_counter_helps[];

/* True when a resource of that name exists, or the program or the account is meant, and such a
 * counter of it has a sentence. */
bool rs_counter_is_known(const char *resource, const char *name);

/* ---- writing ---- */

/* The process that a report is about, and its counters. */
struct rs_report_subject {
    int process;
    const char *program, *rank; /* the rank in its job; empty: unknown */
    const struct rs_reported_stack *stacks;
    size_t stack_count;
    /* Names of resources left out, as a thread held their lock at exit. */
    const char *const *left_out;
    size_t left_out_count;
    bool hides_program;   /* of what counts the program's own allocations (RS_PROGRAM) only the
                             out-of-memory errors are told */
    bool is_this_process; /* the report has its phases (context/scope.h), which no other process
                             can read */
};

/* Adds all counters to an object, as the list "counters"; each is a metric, which has the label
 * `resource` too where that is asked. */
void rs_report_fill_counters(struct rs_node *object, const struct rs_report *report,
                             bool labels_resource, bool hides_program);

/* Adds the report to a document's object, which is printed in that format. */
void rs_report_fill(struct rs_node *process, const struct rs_report_subject *of,
                    enum rs_statistics_format format);

/* Writes the report about `of` to the page `to`; nothing where it has no counters.  Not thread
 * safe.
 */
void rs_report_put(struct rs_page *to, enum rs_statistics_format format,
                   const struct rs_report_subject *of);
