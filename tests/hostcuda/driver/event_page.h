/* SPDX-License-Identifier: Apache-2.0 */
/* Events of several processes: how far an event has come lies in a page that they share. The race
 * detector does not follow them from one process to another. The caller holds the lock. */
#pragma once

#include "driver/event.h"

struct hc_event_page;

/* A page in a file of its own, for an event that another process may open. NULL without memory. */
struct hc_event_page *hc_event_page_create(void);

/* The event is gone: no other process can open it any more. Work that it was recorded after may
 * still be under way, so the page itself stays. */
void hc_event_page_leave(struct hc_event_page *page);

/* One more record; *work marks it as done when it has its turn. */
void hc_event_page_record(struct hc_event_page *page, struct hc_work *work);

/* True when the latest record of any process is done. */
bool hc_event_page_is_done(const struct hc_event_page *page);

/* Work that ends when that is so, as of now. */
void hc_event_page_wait(struct hc_event_page *page, struct hc_work *work);

/* The same as an operation in no stream, under way; with a reference. */
struct hc_op *hc_event_page_op(struct hc_event_page *page, struct hc_ctx *ctx);
