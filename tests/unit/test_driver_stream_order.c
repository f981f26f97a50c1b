/* SPDX-License-Identifier: Apache-2.0 */
/* Which streams a freed block may be handed out again on, after many have come and gone. */
#include "unit.h"

#include "driver/driver.h"
#include "driver/stream.h"

#include <stdint.h>

#define CTX ((CUcontext)(uintptr_t)0x1000)

enum { DESTROYED = 100000, ALIVE = 64 };

static unsigned asked; /* streams that the driver was asked about */

/* The number that the driver gives the stream that has this handle now. */
static unsigned long long number_of(CUstream stream)
{
    return (uintptr_t)stream / 16 + 7;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    asked++;
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult get_id(CUstream stream, unsigned long long *id)
{
    *id = number_of(stream);
    return CUDA_SUCCESS;
}

/* As malloc would place them. */
static CUstream handle(uintptr_t index)
{
    return (CUstream)(0x550000000000 + index * 1168);
}

static int set_up(void **state)
{
    (void)state;
    rs_driver = (struct rs_driver){.cuStreamIsCapturing = is_capturing, .cuStreamGetId = get_id};
    return 0;
}

FIXTURE(set_up, NULL);

TEST(a_stream_that_lives_has_an_order)
{
    unsigned long long key = 0;

    assert_true(rs_stream_key(handle(1), CTX, &key));
    assert_int_equal(key, number_of(handle(1)));
    key = 0;
    assert_true(rs_stream_key_to_free(handle(1), CTX, 0, &key));
    assert_int_equal(key, number_of(handle(1)));
}

/* However many were destroyed since: its handle may be another stream's by now, or nobody's. */
TEST(a_destroyed_stream_is_never_forgotten)
{
    unsigned long long key;

    for (uintptr_t i = 0; i < DESTROYED; i++)
        rs_stream_destroyed(handle(i));
    asked = 0;
    for (uintptr_t i = 0; i < DESTROYED; i++)
        assert_false(rs_stream_key_to_free(handle(i), CTX, 0, &key));
    for (uintptr_t i = 0; i < DESTROYED; i++)
        assert_false(rs_stream_key_to_free(handle(i), CTX, number_of(handle(i)), &key));
    assert_int_equal(asked, 0);
}

/* A few streams that live and are allocated on keep their order, whatever handles were destroyed;
 * their own too. */
TEST(a_new_stream_is_known_again)
{
    unsigned long long key = 0;
    unsigned known = 0;

    for (uintptr_t i = 0; i < ALIVE; i++)
        assert_true(rs_stream_key(handle(i), CTX, &key));
    for (uintptr_t i = 0; i < ALIVE; i++) {
        known += rs_stream_key_to_free(handle(i), CTX, number_of(handle(i)), &key);
        assert_false(rs_stream_key_to_free(handle(i), CTX, number_of(handle(i)) + 1, &key));
        assert_false(rs_stream_key_to_free(handle(i), CTX, 0, &key));
    }
    assert_int_equal(known, ALIVE);
    rs_stream_destroyed(handle(5));
    assert_false(rs_stream_key_to_free(handle(5), CTX, number_of(handle(5)), &key));
    assert_true(rs_stream_key_to_free(handle(6), CTX, number_of(handle(6)), &key));
}
