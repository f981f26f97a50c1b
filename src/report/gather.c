/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers the counters of all stacks by device and kind. */
#include "report/gather.h"

#include "base/check.h"
#include "base/lock.h"
#include "config/mode.h"
#include "context/block_counts.h"
#include "context/end.h"
#include "context/limit.h"
#include "context/visit.h"

static void collect(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct rs_reported_stack *of = data;

    if (stack->kind == of->kind && stack->environment.device == of->device)
        rs_mr_report(mr, &of->report);
}

static void collect_gone(void *data, const struct rs_report *gone)
{
    struct rs_reported_stack *of = data;

    rs_report_fold_gone(&of->report, gone);
}

/* Gathers the counters of all contexts, alive and ended.  At exit those of ended contexts are
 * reported even if another thread holds the contexts' lock for ever. */
static void collect_stacks(struct rs_reported_stack *stack, enum rs_kind kind, int device,
                           bool also_unused)
{
    stack->kind = kind;
    stack->device = device;
    rs_report_clear(&stack->report);
    if (rs_lock_is_bound()) {
        rs_context_each_stack(collect, stack);
        collect_gone(stack, rs_context_folded_report(kind, device));
    } else {
        rs_context_each_stack_ever(kind, device, collect, collect_gone, stack);
    }
    if (kind == RS_KIND_DEVICE)
        rs_limit_report(device, &stack->report, also_unused);
    if (kind == RS_KIND_DEVICE)
        rs_limit_report_refused(device, &stack->report);
    if (also_unused)
        rs_block_counts_report(kind, device, &stack->report);
}

/* The devices and kinds that have stacks: a search for one of them walks over all contexts. */
struct used {
    uint64_t devices[RS_KINDS]; /* one bit per device */
    size_t stack_count;
};

static void note_used(void *data, struct rs_stack *stack, struct rs_mr *mr)
{
    struct used *used = data;

    (void)mr;
    used->devices[stack->kind] |= (uint64_t)1 << stack->environment.device % RS_DEVICES_MAX;
    used->stack_count++;
}

static bool may_have_counters(const struct used *used, int kind, int device)
{
    return used->devices[kind] & (uint64_t)1 << device ||
           rs_context_has_folded((enum rs_kind)kind, device) ||
           (kind == RS_KIND_DEVICE && rs_limit_is_used(device));
}

static void gather(struct rs_gathered *gathered, bool also_unused)
{
    struct used used = {.stack_count = 0};

    gathered->count = 0;
    gathered->is_short = false;
    rs_context_each_stack(note_used, &used);
    gathered->made_stacks = used.stack_count;
    for (int device = 0; device < RS_DEVICES_MAX; device++) {
        for (int kind = 0; kind < RS_KINDS; kind++) {
            if (!may_have_counters(&used, kind, device))
                continue;
            struct rs_reported_stack *stack = &gathered->stacks[gathered->count];
            RS_ASSERT(gathered->count < RS_ARRAY_LENGTH(gathered->stacks));
            collect_stacks(stack, (enum rs_kind)kind, device, also_unused);
            gathered->is_short |= stack->report.is_short;
            gathered->count += stack->report.count > 0;
        }
    }
}

void rs_gather(struct rs_gathered *gathered)
{
    gather(gathered, false);
}

void rs_gather_all(struct rs_gathered *gathered)
{
    gather(gathered, true);
}

const char *rs_gathered_expression(const struct rs_reported_stack *stack,
                                   char text[RS_EXPRESSION_TEXT_BYTES])
{
    const struct rs_expression *expression =
        rs_config_stack(&rs_config, stack->kind, stack->device);

    return expression ? rs_expression_format(expression, NULL, text) : "";
}
