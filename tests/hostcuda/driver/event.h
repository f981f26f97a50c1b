/* SPDX-License-Identifier: Apache-2.0 */
/* Events: places in the order of work that can be queried. The caller holds the lock. */
#pragma once

#include "driver/clock.h"
#include "driver/op.h"

struct hc_event_page;
struct hc_node;

struct hc_event {
    struct hc_ctx *ctx;
    unsigned flags;
    struct hc_event_page *page;    /* shared with other processes; NULL: of this process alone */
    struct hc_op *op;              /* operation of its latest record; NULL before the first */
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

/* Records the event at this place; takes over the reference to op. */
void hc_event_set(struct hc_event *event, struct hc_op *op, const struct hc_clock *clock);
CUresult hc_event_capture(struct hc_event *event, unsigned long long session_id,
                          struct hc_node *const *tips, unsigned tip_count);

/* Record the event after all work of a context; let all later work of a context wait for the event.
 */
CUresult hc_event_record_context(struct hc_event *event, struct hc_ctx *ctx);
CUresult hc_event_wait_context(struct hc_event *event, struct hc_ctx *ctx);

/* Drops the events of a context that ends. */
void hc_event_drop_all(const struct hc_ctx *ctx);

/* Invalidates the events that were recorded in a capture that has ended. */
void hc_event_forget_session(unsigned long long session_id);
