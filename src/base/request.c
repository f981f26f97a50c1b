/* SPDX-License-Identifier: Apache-2.0 */
#include "base/request.h"

#include "base/check.h"
#include "base/clock.h"

enum { REPEATS = 64 };

static const uint64_t patience_ns = 15ull * 1000 * 1000 * 1000;

static __thread struct {
    unsigned depth, repeats;
    uint64_t deadline_ns; /* 0: it has not waited yet */
    bool is_short, is_busy;
} request;

void rs_request_begin(void)
{
    if (request.depth++ > 0)
        return;
    request.repeats = 0;
    request.deadline_ns = 0;
    request.is_short = false;
    request.is_busy = false;
}

void rs_request_end(void)
{
    RS_ASSERT(request.depth > 0);
    request.depth--;
}

bool rs_request_is_under_way(void)
{
    return request.depth > 0;
}

uint64_t rs_request_patience_ns(void)
{
    uint64_t now_ns;

    if (request.depth == 0)
        return 0;
    now_ns = rs_clock_ns();
    if (request.deadline_ns == 0)
        request.deadline_ns = now_ns + patience_ns;
    return request.deadline_ns > now_ns ? request.deadline_ns - now_ns : 0;
}

uint64_t rs_request_deadline_ns(void)
{
    return request.deadline_ns;
}

void rs_request_begin_until(uint64_t deadline_ns)
{
    rs_request_begin();
    if (request.depth == 1)
        request.deadline_ns = deadline_ns;
}

void rs_request_note_short(void)
{
    request.is_short = true;
}

bool rs_request_is_short(void)
{
    return request.is_short;
}

void rs_request_note_busy(void)
{
    request.is_busy = true;
}

bool rs_request_is_busy(void)
{
    return request.is_busy;
}

bool rs_request_may_repeat(void)
{
    return request.depth > 0 && request.repeats++ < REPEATS;
}
