/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a place in the order that can be asked about. The caller holds the lock. */
#pragma once

#include "driver/clock.h"
#include "driver/op.h"

struct hc_event_page;
struct hc_node;

struct hc_event {
    struct hc_ctx *ctx;
    unsigned flags;
    struct hc_event_page *page;    /* NULL: this process's alone */
    struct hc_op *op;              /* its latest record, NULL before the first */
    struct hc_clock clock;         /* of that record */
    unsigned long long request_id; /* the allocation that recorded it as a fence, or 0 */
    unsigned long long session_id; /* the capture that it was recorded in, or 0 */
    struct hc_node **tips;         /* in that capture */
    unsigned tip_count;
    struct hc_event *next, **link; /* in the list of all */
};

CUresult hc_event_of(CUevent handle, struct hc_event **event);

/* A new event, NULL without memory. */
struct hc_event *hc_event_new(struct hc_ctx *ctx, unsigned flags);

/* The event means this place from now on; takes the reference to op. */
void hc_event_set(struct hc_event *event, struct hc_op *op, const struct hc_clock *clock);
CUresult hc_event_capture(struct hc_event *event, unsigned long long session_id,
                          struct hc_node *const *tips, unsigned tip_count);

/* Records after, or lets wait, all work of a context. */
CUresult hc_event_record_context(struct hc_event *event, struct hc_ctx *ctx);
CUresult hc_event_wait_context(struct hc_event *event, struct hc_ctx *ctx);

/* The context goes, and its events with it. */
void hc_event_drop_all(const struct hc_ctx *ctx);

/* The capture is over: events that were recorded in it mean nothing. */
void hc_event_forget_session(unsigned long long session_id);
