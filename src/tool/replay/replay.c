/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/replay/replay.h"

#include "base/request.h"
#include "config/config.h"
#include "driver/fence.h"
#include "driver/stream.h"
#include "ledger/account.h"
#include "resource/expression.h"
#include "resource/report.h"
#include "resource/resource.h"
#include "tool/replay/device.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SLICE_NS = 5 * 1000 * 1000 };

/* The device's memory, if the recording does not tell it. */
#define UNKNOWN_BYTES ((size_t)1 << 43)

/* The stack that is played, in its one context. */
static struct {
    struct rs_environment environment;
    struct rs_account device, context;
    struct rs_sentinel sentinel;
    struct rs_own_stream own_stream;
    struct rs_mr *mr; /* the top of the stack; NULL while the stack is made */
    uint64_t used_bytes;
} played;

/* The library answers alike when the simulated device and when this process has no memory left, or
 * works with less, so that what is played would be wrong. */
static void end_if_out_of_host_memory(void)
{
    if (errno == ENOMEM)
        tool_end_without_memory();
}

/* ---- the stack ---- */

/* Does what charge/reclaim.c does, for one stack and one thread. */
static bool reclaim(const struct rs_environment *environment, const struct rs_refusal *refusal,
                    bool may_wait)
{
    size_t held_bytes = atomic_load(&played.device.charged_bytes), idle_bytes, most_bytes;
    enum rs_readiness readiness = RS_READY_NOTHING;

    if (!played.mr)
        return false;
    if (rs_mr_trim_all(played.mr, 0) > 0)
        return rs_request_patience_ns() > 0 || rs_request_may_look_again();
    idle_bytes = rs_mr_idle_bytes(played.mr);
    most_bytes = rs_min(environment->total_bytes, rs_account_most(&played.device));
    rs_request.is_hopeless = refusal->size_bytes + held_bytes > most_bytes + idle_bytes;
    if (rs_request.is_hopeless)
        return false;
    if (rs_mr_trim_all(played.mr, 1u << RS_MEMORY_DEVICE) > 0)
        return true;
    do
        if (may_wait)
            readiness = rs_mr_make_ready(played.mr, rs_min(SLICE_NS, rs_request_patience_ns()));
    while (readiness == RS_READY_PENDING && rs_request_patience_ns() > 0);
    return readiness == RS_READY_SOME || rs_request_may_look_again();
}

static bool check_nodes(const struct rs_expression *node, struct rs_diagnostics *diagnostics)
{
    const struct rs_mr_descriptor *of = node->descriptor;

    if (of == &rs_mr_descriptor_logging || of == &rs_mr_descriptor_recording)
        return rs_diagnose(diagnostics, node->source, node->at,
                           "'%s' cannot be replayed: a replay writes no log and no recording, so "
                           "leave this memory resource out",
                           of->name);
    if (!node->upstream[0] && of != &rs_mr_descriptor_cuda && of != &rs_mr_descriptor_virtual)
        return rs_diagnose(diagnostics, node->source, node->at,
                           "'%s' cannot be replayed: the memory of a replay must come from 'cuda' "
                           "or 'virtual'",
                           of->name);
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && node->upstream[i]; i++)
        if (!check_nodes(node->upstream[i], diagnostics))
            return false;
    return true;
}

static void prepare(size_t total_bytes, const struct replay_settings *settings)
{
    replay_device_install(settings->lag_ns, total_bytes);
    rs_request = (struct rs_request){.depth = 0};
    rs_hash_clear(&played.context.blocks);
    rs_account_begin(&played.device, NULL);
    rs_account_begin(&played.context, &played.device);
    atomic_store(&played.device.limit_bytes, settings->limit_bytes);
    rs_sentinel_prepare(&played.sentinel, REPLAY_CONTEXT);
    played.environment = (struct rs_environment){
        .context = REPLAY_CONTEXT,
        .sentinel = &played.sentinel,
        .own_stream = &played.own_stream,
        .account = &played.context,
        .reclaim = reclaim,
        .total_bytes = total_bytes,
        .free_bytes = total_bytes,
        .first_on_device = true,
    };
}

/* Makes the stack as it would be made for RMM_RESOURCE.  NULL after a diagnostic. */
static struct rs_mr *make_stack(const struct rs_source *source, struct rs_diagnostics *diagnostics)
{
    static const struct rs_config nothing_set;
    struct rs_expression *expression = rs_config_expression(&nothing_set, source, diagnostics);
    struct rs_mr *mr = NULL;

    if (expression && check_nodes(expression, diagnostics)) {
        played.environment.frees_are_ready = rs_expression_frees_are_ready(expression);
        if (rs_expression_build(expression, &played.environment, diagnostics, &mr) != 0)
            mr = NULL;
        end_if_out_of_host_memory();
        if (!mr && !diagnostics->count)
            (void)rs_diagnose(diagnostics, source, NULL,
                              "the simulated device has too little memory for these memory "
                              "resources: make their initial size smaller");
    }
    rs_expression_free(expression);
    end_if_out_of_host_memory();
    return mr;
}

/* ---- playing ---- */

static void take(struct replay_result *result, size_t bytes, CUstream stream,
                 struct rs_allocation *block)
{
    CUresult answer = rs_mr_allocate(played.mr, bytes, stream, block);

    end_if_out_of_host_memory();
    if (answer != CUDA_SUCCESS) {
        block->address = 0;
        result->refusals++;
        return;
    }
    played.used_bytes += bytes;
    result->used_peak = rs_max(result->used_peak, played.used_bytes);
}

static void give(CUstream stream, struct rs_allocation *block)
{
    if (!block->address)
        return;
    played.used_bytes -= block->size_bytes;
    (void)rs_mr_deallocate(played.mr, block, stream);
    end_if_out_of_host_memory();
    block->address = 0;
}

/* Plays the events. A request that was refused in the recorded run is made too. If it succeeds
 * here, its block is freed at once. */
static void play_events(const struct sequence *sequence, struct rs_allocation *blocks,
                        struct replay_result *result)
{
    uint64_t ns = sequence->events[0].ns;

    for (size_t i = 0; i < sequence->event_count; i++) {
        const struct sequence_event *event = &sequence->events[i];
        CUstream stream = (CUstream)(uintptr_t)event->stream;
        bool is_refused = event->kind == RS_RECORDING_REFUSED;
        struct rs_allocation not_kept;
        struct rs_allocation *block = is_refused ? &not_kept : &blocks[event->block];
        replay_device_pass(event->ns - ns, event->thread);
        ns = event->ns;
        if (event->kind != RS_RECORDING_DEALLOCATE)
            take(result, (size_t)event->size_bytes, stream, block);
        if (event->kind != RS_RECORDING_ALLOCATE)
            give(stream, block);
    }
}

static void sum_up(struct replay_result *result)
{
    struct rs_report report = {.count = 0};

    rs_mr_report(played.mr, &report);
    end_if_out_of_host_memory();
    for (size_t i = 0; i < report.count; i++) {
        const struct rs_counter *counter = &report.counters[i];
        if (strcmp(counter->name, "driver_allocations") == 0 ||
            strcmp(counter->name, "driver_frees") == 0)
            result->driver_calls += counter->value;
    }
    result->waits = rs_report_value(&report, "reuse", "waits", 0) +
                    rs_report_value(&report, "reuse", "full_waits", 0);
    result->waited_ns = rs_report_value(&report, "reuse", "waited", 0);
    result->held_peak = atomic_load(&played.device.peak_charged_bytes);
    rs_report_release(&report);
}

static void play_all(const struct sequence *sequence, uint64_t lag_ns, struct replay_result *result)
{
    size_t bytes = sequence->block_count * sizeof(struct rs_allocation);
    /* The address of a block is 0 if it was not served or is freed. */
    struct rs_allocation *blocks = memset(tool_grow(NULL, bytes), 0, bytes);

    play_events(sequence, blocks, result);
    sum_up(result);
    result->longer_ns = lag_ns ? replay_device_idle_ns() : result->waited_ns;
    for (size_t i = 0; i < sequence->block_count; i++)
        give(NULL, &blocks[i]);
    free(blocks);
}

bool replay_play(const struct sequence *sequence, const char *expression,
                 const struct replay_settings *settings, struct rs_diagnostics *diagnostics,
                 struct replay_result *result)
{
    struct rs_source source = {"--resource", expression};

    *result = (struct replay_result){.used_peak = 0};
    played.mr = NULL;
    errno = 0;
    prepare(sequence->device_bytes ? (size_t)sequence->device_bytes : UNKNOWN_BYTES, settings);
    played.mr = make_stack(&source, diagnostics);
    if (played.mr) {
        play_all(sequence, settings->lag_ns, result);
        rs_mr_destroy(played.mr, false);
    }
    replay_device_remove();
    return played.mr;
}
