/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/idle.h"

#include "base/lock.h"
#include "base/request.h"

enum { IDLE_NS = 500 * 1000 }; /* the longest that a request waits for a context to be idle */

enum rs_fence_state rs_context_idle(CUcontext context, uint64_t bound_ns)
{
    CUevent event = rs_fence_supported() ? rs_fence_create(context) : NULL;
    enum rs_fence_state state = RS_FENCE_BROKEN;
    uint64_t begin_ns = rs_clock_ns();
    unsigned turn = 0;

    if (!event)
        return state;
    if (rs_fence_record(context, event, NULL))
        while ((state = rs_fence_query(context, event)) == RS_FENCE_PENDING &&
               rs_clock_ns() - begin_ns < bound_ns)
            rs_poll_pause(turn++);
    rs_fence_destroy(event);
    return state;
}

bool rs_request_sees_idle(CUcontext context)
{
    enum rs_fence_state state;

    if (rs_request_is_busy(context))
        return false;
    state = rs_context_idle(context, IDLE_NS);
    if (state != RS_FENCE_DONE) /* one look is enough, as each may take IDLE_NS */
        rs_request_note_busy(context, state == RS_FENCE_PENDING);
    return state == RS_FENCE_DONE;
}
