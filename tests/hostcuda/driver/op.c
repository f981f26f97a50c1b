/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/op.h"

#include "driver/context.h"
#include "driver/request.h"
#include "driver/schedule.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

struct hc_op *hc_op_new(struct hc_ctx *ctx, const struct hc_work *work)
{
    struct hc_op *op = calloc(1, sizeof(*op));
    if (!op)
        return NULL;
    op->ctx = ctx;
    op->refs = 1;
    if (work)
        op->work = *work;
    return op;
}

struct hc_op *hc_op_ref(struct hc_op *op)
{
    if (op)
        op->refs++;
    return op;
}

void hc_op_unref(struct hc_op *op)
{
    if (!op || --op->refs)
        return;
    hc_work_drop(&op->work);
    hc_clock_clear(&op->clock);
    free(op->later);
    free(op);
}

void hc_op_after(struct hc_op *op, struct hc_op *earlier)
{
    if (!earlier || earlier->done)
        return;
    if (earlier->later_count == earlier->later_room) {
        unsigned room = earlier->later_room ? 2 * earlier->later_room : 4;
        struct hc_op **later = realloc(earlier->later, room * sizeof(*later));
        if (!later)
            abort(); /* an order that is lost would be a wrong answer */
        earlier->later = later;
        earlier->later_room = room;
    }
    earlier->later[earlier->later_count++] = hc_op_ref(op);
    op->pending++;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Marks one operation done; those that became ready are chained to *ready. */
static void retire(struct hc_op *op, struct hc_op **ready)
{
    if (op->work.finish)
        op->work.finish(op->work.args);
    op->done = true;
    op->done_ns = now_ns();
    hc_work_drop(&op->work);
    for (unsigned i = 0; i < op->later_count; i++) {
        struct hc_op *later = op->later[i];
        if (--later->pending) {
            hc_op_unref(later);
            continue;
        }
        later->next = *ready; /* the reference goes with it */
        *ready = later;
    }
    op->later_count = 0;
    hc_op_unref(op); /* the scheduler's */
}

/* A place in the order needs no worker, unless the schedule wants it to be late. */
static bool is_instant(const struct hc_op *op)
{
    return !op->work.run && !hc_schedule_delays_markers();
}

static void start_ready(struct hc_op *ready)
{
    while (ready) {
        struct hc_op *op = ready;
        ready = op->next;
        op->next = NULL;
        if (is_instant(op)) {
            retire(op, &ready);
        } else {
            hc_schedule_push(op);
        }
        hc_op_unref(op);
    }
}

void hc_op_start(struct hc_op *op)
{
    hc_op_ref(op); /* the scheduler's, until it is retired */
    if (op->pending)
        return;
    assert(!op->next);
    hc_op_ref(op);
    start_ready(op);
    hc_schedule_wake();
}

void hc_op_complete(struct hc_op *op, CUresult result)
{
    if (result)
        hc_ctx_fail(op->ctx, result);
    struct hc_op *ready = NULL;
    retire(op, &ready);
    start_ready(ready);
    hc_schedule_done();
}

void hc_op_wait(struct hc_op *op)
{
    if (!op)
        return;
    hc_op_ref(op);
    hc_request_waits(op);
    while (!op->done)
        hc_schedule_wait();
    hc_op_unref(op);
}

void hc_work_touches(struct hc_work *work, uintptr_t address, size_t bytes, bool write)
{
    assert(work->range_count < HC_OP_RANGES);
    if (bytes)
        work->ranges[work->range_count++] = (struct hc_range){address, bytes, write};
}

void hc_work_drop(struct hc_work *work)
{
    free(work->staged);
    work->staged = NULL;
}
