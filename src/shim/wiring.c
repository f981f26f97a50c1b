/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/wiring.h"

#include "base/lock.h"
#include "charge/charge.h"
#include "config/mode.h"
#include "context/block.h"
#include "context/block_counts.h"
#include "context/context.h"
#include "context/limit.h"
#include "context/scope.h"
#include "context/table.h"
#include "introspect/introspect.h"
#include "ipc/export.h"
#include "ipc/import.h"
#include "report/publish.h"
#include "report/report.h"
#include "resource/segment.h"
#include "shared/commands.h"
#include "shim/commands.h"

static void begin_counters(void)
{
    rs_limit_begin();
    rs_block_counts_begin();
}

static bool serving(struct rs_diagnostics *diagnostics)
{
    rs_publish_begin(); /* first, since counters lie in published memory */
    begin_counters();
    /* The file of commands is made before the job is joined, since the process's entry in the job
     * tells other processes where that file is. */
    rs_commands_begin(rs_config.control == RS_CONTROL_THREAD);
    if (!rs_limit_join_job(diagnostics)) {
        rs_commands_forget();
        return false;
    }
    if (rs_config.control == RS_CONTROL_THREAD)
        rs_shim_commands_thread();
    rs_report_arm();
    return true;
}

static void forked(void)
{
    rs_commands_forget();
    begin_counters();
    rs_scopes_forked();
}

/* The locks of the whole process (RS_RESET_IN_CHILD). */
#define LOCKS(X)                                                                                   \
    X(charge_charge)                                                                               \
    X(calls_done)                                                                                  \
    X(holds_done)                                                                                  \
    X(context_scope)                                                                               \
    X(context_pushed)                                                                              \
    X(context_table)                                                                               \
    X(driver_capture)                                                                              \
    X(driver_stream_order)                                                                         \
    X(introspect)                                                                                  \
    X(ipc_export)                                                                                  \
    X(ipc_import)                                                                                  \
    X(ipc_pool)                                                                                    \
    X(report_live)                                                                                 \
    X(report_out_of_memory)                                                                        \
    X(report_publish)                                                                              \
    X(report_report)                                                                               \
    X(logging)                                                                                     \
    X(recording)                                                                                   \
    X(resource_unfinished)                                                                         \
    X(shim_nvtx)                                                                                   \
    X(trace_call_site)                                                                             \
    X(trace_object)
#define DECLARE(name) extern const struct rs_lock_to_reset rs_reset_##name;
#define RESET(name)   rs_lock_reset(&rs_reset_##name);
LOCKS(DECLARE)

static void reset_locks(void)
{
    LOCKS(RESET)
    rs_import_forked();
    rs_context_exclusion_forked();
}

static void before_trim(void)
{
    rs_export_collect(true);
}

static void stack_gone(const struct rs_stack *stack, struct rs_mr *mr)
{
    rs_segment_remove_all(&stack->environment);
    rs_leaks_note_gone(stack, mr);
}

static void context_gone(struct rs_context *context)
{
    rs_block_forget_all(context);
    rs_export_forget_held(context);
    rs_charge_forget(context);
    if (!context->primary) /* a primary context has the same handle, and peers, when it is back */
        rs_peer_forget(context->handle, context->id);
}

const struct rs_wiring rs_wiring = {
    .serving = serving,
    .forked = forked,
    .reset_locks = reset_locks,
    .first_context = rs_report_claim,
    .stacks_changed = rs_publish_stacks,
    .before_trim = before_trim,
    .stack_gone = stack_gone,
    .context_gone = context_gone,
    .export_gone = rs_export_forget,
    .peer_devices = rs_peer_devices,
    .reclaim = rs_reclaim,
};
