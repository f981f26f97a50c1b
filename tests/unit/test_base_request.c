/* SPDX-License-Identifier: Apache-2.0 */
/* The request of a thread. */
#include "unit.h"

#include "base/request.h"

#include <pthread.h>
#include <setjmp.h>

/* As a handler of the program's that leaves an allocation by siglongjmp(). */
static void leave(void)
{
    sigjmp_buf place;

    if (sigsetjmp(place, 0))
        return;
    rs_request_begin();
    siglongjmp(place, 1);
}

static void *leave_many(void *data)
{
    for (int i = 0; i < 1000; i++)
        leave();
    for (int i = 0; i < 100; i++) {
        rs_request_begin();
        rs_request_begin();
        rs_request_end();
        rs_request_end();
    }
    assert_true(rs_request_is_under_way());
    return data;
}

/* In a thread of its own, whose state ends with it. */
TEST(requests_that_are_never_ended_end_no_process)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, leave_many, NULL), 0);
    pthread_join(thread, NULL);
    assert_false(rs_request_is_under_way());
}

TEST(memory_that_comes_back_at_each_try_is_no_progress)
{
    rs_request_begin();
    assert_true(rs_request_note_pools(64));
    assert_false(rs_request_note_pools(64));
    assert_false(rs_request_note_pools(128));
    assert_true(rs_request_note_pools(32));
    rs_request_end();
    rs_request_begin();
    assert_true(rs_request_note_pools(64));
    rs_request_end();
}
