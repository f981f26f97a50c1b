/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the reports: at exit, and on demand. */
#include "report/report.h"

#include "base/lock.h"
#include "base/log.h"
#include "base/process.h"
#include "config/config.h"
#include "config/mode.h"
#include "report/counters.h"
#include "report/leaks.h"
#include "report/out_of_memory.h"
#include "report/publish.h"
#include "resource/adaptor/logging.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { LOCKS_WAIT_NS = 500 * 1000 * 1000 }; /* the longest wait for all locks together */

static struct rs_mutex writing =
    RS_MUTEX_INIT(RS_RANK_REPORT); /* protects the page and the gathered counters */
RS_RESET_IN_CHILD(report_report, writing);
static struct rs_page page;
static struct rs_gathered all;

static void put_report(enum rs_statistics_format format)
{
    const struct rs_locks_missed *missed = rs_locks_missed();

    rs_report_put(&page, format,
                  &(struct rs_report_subject){
                      .process = (int)getpid(),
                      .program = program_invocation_short_name,
                      .rank = rs_process_rank(),
                      .stacks = all.stacks,
                      .stack_count = all.count,
                      .left_out = missed->names,
                      .left_out_count = missed->name_count,
                      .hides_program = true,
                      .is_this_process = true,
                  });
}

static struct rs_page_file file = {.variable = "RMM_STATISTICS"};

void rs_report_claim(void)
{
    rs_page_claim(&file, rs_config.statistics_path);
    rs_leaks_claim();
    rs_oom_claim();
    if (file.state != RS_PAGE_FILE_NONE) /* an error of it was logged already */
        rs_publish_report_file(rs_config.statistics,
                               file.state == RS_PAGE_FILE_CLAIMED ? &file.output : NULL);
}

/* The caller holds the lock. */
static void write_report(enum rs_statistics_format format, struct rs_page_file *to,
                         const char *path)
{
    rs_gather(&all, false);
    if (all.is_short)
        rs_log_asked("RMM_STATISTICS: out of memory, so some counters are missing");
    rs_page_begin(&page, to, path);
    put_report(format);
    rs_page_end(&page);
}

int rs_report_write(const char *where, struct rs_diagnostics *diagnostics)
{
    const struct rs_source source = {"rmmshim_report", where ? where : "text"};
    static struct rs_page_file to; /* under the lock; it holds a path */
    int error;
    unsigned before = diagnostics->count;
    const char *path = NULL;
    enum rs_statistics_format format = rs_config_report(&source, true, &path, diagnostics);

    if (diagnostics->count == before && format == RS_STATISTICS_NONE)
        rs_diagnose(diagnostics, &source, NULL, "this is not a report");
    if (diagnostics->count > before)
        return -EINVAL;
    rs_mutex_lock(&writing);
    to = (struct rs_page_file){.variable = source.name};
    write_report(format, &to, path);
    error = to.error;
    rs_mutex_unlock(&writing);
    return error;
}

static void write_at_exit(void)
{
    if (!rs_mutex_lock_bounded(&writing, "rmmshim_report"))
        return;
    write_report(rs_config.statistics, &file, rs_config.statistics_path);
    rs_mutex_unlock(&writing);
}

static _Atomic bool armed;

static void say_left_out(void)
{
    const struct rs_locks_missed *missed = rs_locks_missed();
    char text[RS_LOG_LINE_BYTES] = "";
    size_t used = 0;

    for (unsigned i = 0; i < missed->name_count && used < sizeof(text); i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", i ? ", " : "",
                                 missed->names[i]);
    if (used)
        rs_log_asked("left out of the reports, since a thread was still using it at exit: %s",
                     text);
}

/* Runs after all exit handlers, and after other libraries' destructors, which may still free. Makes
 * no CUDA call, as the driver may be gone.  Takes only bounded locks and calls no malloc: a
 * signal's handler may have called exit() while the thread was inside either. */
__attribute__((destructor)) static void at_exit(void)
{
    if (!atomic_exchange(&armed, false) || !rs_mode_serving())
        return; /* no report was asked for, or this is a forked child */
    rs_lock_bound_begin(LOCKS_WAIT_NS);
    rs_publish_report_step(RS_REPORT_BEGUN);
    rs_logging_end();
    if (rs_config.statistics != RS_STATISTICS_NONE)
        write_at_exit();
    if (rs_config.tracking != RS_STATISTICS_NONE)
        rs_leaks_write();
    rs_oom_end();
    say_left_out();
    rs_publish_report_step(RS_REPORT_DONE);
    rs_lock_bound_end();
}

void rs_report_arm(void)
{
    atomic_store(&armed, true);
}
