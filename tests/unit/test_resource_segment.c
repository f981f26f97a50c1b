/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: which of them a context's end removes. */
#include "unit.h"

#include "resource/segment.h"

enum { SEGMENTS = 3, SEGMENT_BYTES = 1 << 21 };
static const CUdeviceptr first = 0x700000000000;

static CUdeviceptr address_of(unsigned i)
{
    return first + (CUdeviceptr)i * SEGMENT_BYTES;
}

/* Memory that outlives its context is given back by then, and its addresses are the driver's. */
TEST(the_end_of_a_context_removes_its_segments_and_no_others)
{
    static const struct rs_environment ended, other;
    struct rs_segment segment;

    assert_true(rs_segment_add(&ended, address_of(0), SEGMENT_BYTES, false));
    assert_true(rs_segment_add(&other, address_of(1), SEGMENT_BYTES, false));
    assert_true(rs_segment_add(&ended, address_of(2), SEGMENT_BYTES, true));
    for (unsigned i = 0; i < SEGMENTS; i++)
        assert_true(rs_segment_find(address_of(i), &segment));
    rs_segment_remove_all(&ended);
    assert_false(rs_segment_find(address_of(0), &segment));
    assert_false(rs_segment_find(address_of(2), &segment));
    assert_true(rs_segment_find(address_of(1), &segment));
    assert_ptr_equal(segment.environment, &other);
    assert_int_equal(segment.start, address_of(1));
}
