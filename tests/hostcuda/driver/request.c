/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/request.h"

#include "driver/call.h"
#include "driver/config.h"
#include "driver/context.h"
#include "driver/site.h"
#include "driver/stream.h"
#include "hostcuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define PRINT_MAX   20
#define EXIT_STATUS 66
#define IDLE_MAX    16

static __thread struct {
    unsigned depth;
    unsigned long long id;
    unsigned long long idle_ids[IDLE_MAX]; /* of contexts */
    unsigned idle_count;
    unsigned long long idle_stream_id;
} request;

static atomic_ullong last_id, report_count;

unsigned long long hc_request_id(void)
{
    return request.depth ? request.id : 0;
}

void hc_request_saw_idle(const struct hc_ctx *ctx)
{
    if (request.idle_count < IDLE_MAX)
        request.idle_ids[request.idle_count++] = ctx->owner->id;
}

void hc_request_saw_stream_idle(const struct hc_stream *stream)
{
    request.idle_stream_id = stream->id;
}

static bool was_idle(const struct hc_op *op)
{
    if (op->stream_id && op->stream_id == request.idle_stream_id)
        return true;
    for (unsigned i = 0; i < request.idle_count; i++) {
        if (request.idle_ids[i] == op->ctx->owner->id)
            return true;
    }
    return false;
}

void hc_request_waits(const struct hc_op *op)
{
    /* An operation that waits for no other ends by itself. */
    if (!request.depth || !op->pending || was_idle(op))
        return;
    if (atomic_fetch_add(&report_count, 1) >= PRINT_MAX)
        return;
    struct hc_site site;
    char text[400];
    hc_site_take(&site);
    hc_site_print(&site, text, sizeof(text));
    dprintf(STDERR_FILENO,
            "hostcuda: wait: %s waits for unfinished work inside an allocation\n    now:       "
            "%s\n",
            hc_call_name(), text);
}

__attribute__((destructor)) static void finish(void)
{
    unsigned long long count = atomic_load(&report_count);
    if (!count)
        return;
    dprintf(STDERR_FILENO, "hostcuda: wait: %llu reports\n", count);
    _exit(EXIT_STATUS);
}

HC_API void hostcuda_request_begin(void)
{
    if (!hc_config.waits || request.depth++)
        return;
    request.id = atomic_fetch_add(&last_id, 1) + 1;
    request.idle_count = 0;
    request.idle_stream_id = 0;
}

HC_API void hostcuda_request_end(void)
{
    if (request.depth)
        request.depth--;
}

HC_API unsigned long long hostcuda_wait_count(void)
{
    return atomic_load(&report_count);
}

HC_API void hostcuda_wait_reset(void)
{
    atomic_store(&report_count, 0);
}
