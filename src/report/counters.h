/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers the counters of all stacks of this process, including those of ended contexts. Sums
 * counters up in a few numbers, and writes them as text, JSON or Prometheus text; these functions
 * also serve for another process, whose page was read (tool/process.h). */
#pragma once

#include "config/config.h"
#include "report/document.h"
#include "resource/expression.h"
#include "resource/report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- gathering ---- */

/* The summed counters of all stacks of one kind on one device. */
struct rs_reported_stack {
    enum rs_kind kind;
    int device;
    struct rs_report report;
    /* The expression from which the stacks are made; NULL: the one of rs_gathered_expression. */
    const char *expression;
};

/* The counters of one gathering. */
struct rs_gathered {
    struct rs_reported_stack stacks[RS_DEVICES_MAX * RS_KINDS]; /* sorted by device, then by kind */
    size_t count;
    size_t made_stacks; /* the number of live stacks of all contexts */
    bool is_short;      /* some counters are missing, since there was no memory for them */
};

/* Gathers the counters. Before the first call *gathered must be all zero. With also_unused it
 * includes accounts that have counted nothing yet, for readers of published memory. Uses no malloc.
 * Between rs_lock_bound_begin and rs_lock_bound_end (at exit) it waits for locks only within that
 * bound. Thread safe for different objects. */
void rs_gather(struct rs_gathered *gathered, bool also_unused);

/* Writes the expression that this process's settings give for the kind and device to `text`, and
 * returns it; "" if there is none. */
const char *rs_gathered_expression(const struct rs_reported_stack *stack,
                                   char text[RS_EXPRESSION_TEXT_BYTES]);

/* ---- what they amount to ---- */

/* The numbers that a user reads about one kind of memory on one device. They are bytes unless a
 * comment says otherwise. */
struct rs_usage {
    uint64_t used; /* what the program has allocated and not freed, in the sizes that it asked for,
                      from stacks or from the driver */
    uint64_t used_peak; /* exact if stacks served all of it, else an upper bound */
    uint64_t held;      /* memory taken from the driver: what the account has charged; without an
                           account, what the leaves hold */
    uint64_t held_peak;
    uint64_t waiting;           /* freed memory that the GPU may still use */
    uint64_t cached;            /* what is held and is neither used nor waiting */
    uint64_t limit, job_limit;  /* 0: no limit */
    uint64_t refused;           /* out-of-memory errors that the program got */
    uint64_t internal_refusals; /* refusals by the limit and by leaves. The program may have got its
                                   memory in another way afterwards, and one request may be refused
                                   several times */
    uint64_t allocations, live_allocations; /* how many allocations of the program stacks have
                                               served, and how many of these are not freed yet */
    uint64_t allocated; /* all bytes that stacks have allocated for the program since the process
                           began */
    uint64_t spilled, spilled_peak; /* the part of `used` in the second upstream of a `fallback` */
};

struct rs_usage rs_usage_of(const struct rs_report *report);

/* Adds `from` to `to`. The sum has a limit only if both have one, and never a job limit. The sum of
 * two peaks is an upper bound of the peak of both together. */
void rs_usage_add(struct rs_usage *to, const struct rs_usage *from);

/* Returns the lower of the two limits, which is the one that holds; 0: there is none. */
uint64_t rs_usage_least_limit(const struct rs_usage *usage);

/* Adds the numbers to an object of a document, as fields and as metrics. */
void rs_usage_put(struct rs_node *object, const struct rs_usage *usage);

/* Returns the metric of the field number `index` of rs_usage_put; NULL after the last field. If the
 * field is no metric, the result has no name. */
const struct rs_metric *rs_usage_metric(size_t index);

/* A sentence about each counter. A counter is described by the first row with its name and its
 * resource; a NULL resource stands for any. The last row, without a name, ends the list. */
extern const struct rs_counter_help {
    const char *resource, *name, *help;
} rs_counter_helps[];

/* True when a row of rs_counter_helps has this name and this resource, or this name and a NULL
 * resource while `resource` names a memory resource. */
bool rs_counter_is_known(const char *resource, const char *name);

/* ---- writing ---- */

/* The process that a report is about, and its counters. */
struct rs_report_subject {
    int process;
    const char *program, *rank; /* the process's rank in its job; empty: unknown */
    const struct rs_reported_stack *stacks;
    size_t stack_count;
    /* Names of the parts that the report lacks because another thread held their lock at exit. */
    const char *const *left_out;
    size_t left_out_count;
    bool hides_program;   /* leaves out the counters of the program's own allocations (RS_PROGRAM),
                             except that of out-of-memory errors */
    bool is_this_process; /* the report also has the phases (context/scope.h), which are known only
                             to the process itself */
};

/* Adds the counters to an object, as the list "counters". Each is also a metric, which has the
 * label `resource` if labels_resource. hides_program is that of struct rs_report_subject. */
void rs_report_fill_counters(struct rs_node *object, const struct rs_report *report,
                             bool labels_resource, bool hides_program);

/* Adds the report about `of` to `process`, an object of a document that will be printed in that
 * format. */
void rs_report_fill(struct rs_node *process, const struct rs_report_subject *of,
                    enum rs_statistics_format format);

/* Writes the report about `of` to the page `to`; writes nothing if there are no counters to show.
 * Not thread safe. */
void rs_report_put(struct rs_page *to, enum rs_statistics_format format,
                   const struct rs_report_subject *of);
