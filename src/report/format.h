/* SPDX-License-Identifier: Apache-2.0 */
/* A report of statistics, written as text, JSON or Prometheus text: of this process
 * (report/report.c), of one that is gone (tool/gone.c) or of any (tool/cmd_stats.c). */
#pragma once

#include "config/config.h"
#include "report/page.h"
#include "resource/report.h"

#include <stddef.h>

/* The counters of one kind's stacks of a device. */
struct rs_reported_stack {
    enum rs_kind kind;
    int device;
    struct rs_report report;
};

struct rs_report_subject {
    int process;
    const char *program;
    const struct rs_reported_stack *stacks;
    size_t stack_count;
    const char *(*expression)(const struct rs_reported_stack *stack);
    const char *const *left_out; /* what a thread was inside of at exit */
    size_t left_out_count;
    const char *more_labels; /* of each sample for Prometheus, escaped: ",pid=\"4711\""; or NULL */
};

/* Not thread safe. */
void rs_report_put(struct rs_page *to, enum rs_statistics_format format,
                   const struct rs_report_subject *of);

/* Several processes for Prometheus: all samples of a metric stand together. */
void rs_report_put_prometheus(struct rs_page *to, const struct rs_report_subject *of, size_t count);
