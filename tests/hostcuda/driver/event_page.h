/* SPDX-License-Identifier: Apache-2.0 */
/* Events shared by several processes: their progress lies in a page that the processes share. The
 * race detector does not follow such events from one process to another. The caller holds the lock.
 */
#pragma once

#include "driver/event.h"

struct hc_event_page;

/* A page in a file of its own, for an event that another process may open. NULL without memory. */
struct hc_event_page *hc_event_page_create(void);

/* The event was destroyed: no other process can open it any more. The page stays, as work that the
 * event was recorded after may still run. */
void hc_event_page_leave(struct hc_event_page *page);

/* Adds a record; *work becomes the work that marks it done. */
void hc_event_page_record(struct hc_event_page *page, struct hc_work *work);

/* True when the latest record of any process is done. */
bool hc_event_page_is_done(const struct hc_event_page *page);

/* Sets *work to work that ends when the latest record as of now is done. */
void hc_event_page_wait(struct hc_event_page *page, struct hc_work *work);

/* Returns such a wait as a running operation in no stream, with a reference. */
struct hc_op *hc_event_page_op(struct hc_event_page *page, struct hc_ctx *ctx);
