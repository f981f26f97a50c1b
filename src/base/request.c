/* SPDX-License-Identifier: Apache-2.0 */
#include "base/request.h"

#include "base/lock.h"
#include "base/thread.h"

#include <stdatomic.h>

/* Limits of repeated attempts.  While several threads are short of memory, one of them may take
 * what another has just given back.  So a request also naps between repeats: with 64 repeats and no
 * naps, four threads with room for four blocks of 8 MiB were refused 10 of 8000 requests. */
enum {
    IN_VAIN_MOST = 8,
    LOOKS_AT_ONCE = 2,
    LOOKS = 8,
    REPEATS_AT_ONCE = 8,
    NAP_NS = 20 * 1000,
    NAP_MOST_NS = 500 * 1000,
    DEPTH_MOST = 64 /* deeper than any stack of resources */
};

static const uint64_t patience_ns = 15ull * 1000 * 1000 * 1000, repeat_ns = 100ull * 1000 * 1000;

__thread struct rs_request rs_request;

__thread uint64_t rs_request_took_ns;
static _Atomic bool is_timed;

void rs_request_time_all(void)
{
    atomic_store_explicit(&is_timed, true, memory_order_relaxed);
}

/* A signal handler of the program may leave a request by siglongjmp(), and then rs_request_end is
 * never called for that request.  The depth would rise with each such request, so it stops at
 * DEPTH_MOST, which nested requests never reach. */
void rs_request_begin(void)
{
    if (rs_request.depth == DEPTH_MOST || rs_request.depth++ > 0)
        return;
    rs_request = (struct rs_request){
        .depth = 1,
        .pool_bytes_least = SIZE_MAX,
        .in_vain = rs_request.in_vain,
    };
    rs_uncancelled_begin(&rs_request.uncancelled);
    if (atomic_load_explicit(&is_timed, memory_order_relaxed))
        rs_request.begun_ns = rs_clock_ns();
}

/* Shortens later waits of a thread whose repeats are in vain: a program that asks for more than
 * there is, in many threads, then gets its refusals faster. */
static void learn_refusals(void)
{
    if (rs_request.repeats > REPEATS_AT_ONCE)
        rs_request.in_vain =
            rs_request.is_refused ? (unsigned)rs_min(rs_request.in_vain + 1, IN_VAIN_MOST) : 0;
}

void rs_request_end(void)
{
    RS_ASSERT(rs_request.depth > 0);
    if (--rs_request.depth > 0)
        return;
    learn_refusals();
    if (rs_request.begun_ns)
        rs_request_took_ns += rs_clock_ns() - rs_request.begun_ns;
    rs_uncancelled_end(&rs_request.uncancelled);
}

uint64_t rs_request_patience_ns(void)
{
    uint64_t now_ns;

    if (rs_request.depth == 0)
        return 0;
    now_ns = rs_clock_ns();
    if (rs_request.deadline_ns == 0)
        rs_request.deadline_ns = now_ns + patience_ns;
    return rs_request.deadline_ns > now_ns ? rs_request.deadline_ns - now_ns : 0;
}

void rs_request_begin_until(uint64_t deadline_ns)
{
    rs_request_begin();
    if (rs_request.depth == 1)
        rs_request.deadline_ns = deadline_ns;
}

bool rs_request_note_pools(size_t held_bytes)
{
    bool is_less = held_bytes < rs_request.pool_bytes_least;

    rs_request.pool_bytes_least = rs_min(rs_request.pool_bytes_least, held_bytes);
    return is_less;
}

void rs_request_note_busy(const void *context, bool may_end)
{
    rs_request.busy = context;
    rs_request.may_end = rs_request.may_end || may_end;
}

bool rs_request_forget_busy(void)
{
    bool may_end = rs_request.may_end;

    rs_request.busy = NULL;
    rs_request.may_end = false;
    return may_end;
}

bool rs_request_may_look_again(void)
{
    if (rs_request.depth == 0 || rs_request.looks++ >= LOOKS)
        return false;
    if (rs_request.looks > LOOKS_AT_ONCE)
        rs_nap(NAP_NS);
    return true;
}

bool rs_request_may_repeat(void)
{
    uint64_t nap_ns, now_ns;

    if (rs_request.depth == 0)
        return false;
    if (rs_request.repeats++ < REPEATS_AT_ONCE)
        return true;
    now_ns = rs_clock_ns();
    if (rs_request.repeats == REPEATS_AT_ONCE + 1)
        rs_request.repeated_ns = now_ns;
    RS_ASSERT(rs_request.in_vain <= IN_VAIN_MOST && rs_request.repeated_ns <= now_ns);
    if (now_ns - rs_request.repeated_ns > repeat_ns >> rs_request.in_vain)
        return false;
    RS_ASSERT(rs_request.repeats > REPEATS_AT_ONCE);
    nap_ns = (uint64_t)NAP_NS << rs_min(rs_request.repeats - REPEATS_AT_ONCE, 16);
    /* Makes the nap 1 to 1.75 times as long, depending on the thread's index, so that threads do
     * not keep repeating at the same moments. */
    nap_ns = rs_min(nap_ns, NAP_MOST_NS) * (4 + rs_thread_index() % 4) / 4;
    rs_nap(nap_ns);
    return true;
}
