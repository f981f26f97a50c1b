/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that `virtual` gives back at the end of its context. */
#include "virtual_stack.h"

TEST(the_end_of_the_context_gives_all_back_at_once)
{
    struct rs_mr *mr = make(GIB, OPTIONS("initial_size=64MiB"));
    struct rs_allocation live = take(mr, 100 * MIB), freed = take(mr, 20 * MIB), none;
    struct rs_segment segment;
    uint64_t calls;

    give(mr, &freed);
    fake_vmm_watch(live.address, live.size_bytes, false);
    rs_mr_context_ended(mr);
    assert_true(fake_vmm_is_clean());
    assert_int_equal(rs_account_held_bytes(&account), 0);
    assert_false(rs_segment_find(live.address, &segment));
    calls = fake_vmm.calls;
    assert_int_equal(rs_mr_allocate(mr, 512, NULL, &none), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_int_equal(rs_mr_allocate_with(mr, 512, NULL, RS_EFFORT_HELD, &none),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(rs_mr_deallocate(mr, &live, NULL), CUDA_SUCCESS);
    assert_int_equal(rs_mr_trim(mr, 0), 0);
    rs_mr_destroy(mr, true);
    assert_int_equal(fake_vmm.calls, calls);
}

TEST(destroyed_with_its_memory_gone_it_calls_nobody)
{
    struct rs_mr *mr = make(GIB, NULL);
    uint64_t calls;

    (void)take(mr, 1000);
    calls = fake_vmm.calls;
    rs_mr_destroy(mr, true);
    assert_int_equal(fake_vmm.calls, calls);
}

static void end_context(void *mr)
{
    rs_mr_context_ended(mr);
}

TEST(a_growth_that_the_end_overtakes_gives_back_too)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation none;

    fake_vmm.on_call = end_context;
    fake_vmm.on_call_data = mr;
    assert_int_equal(rs_mr_allocate(mr, 100 * MIB, NULL, &none), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_int_equal(fake_vmm.creations, 4);
    assert_true(fake_vmm_is_clean());
    assert_int_equal(rs_account_held_bytes(&account), 0);
    rs_mr_destroy(mr, true);
}

/* Whichever call fails then: 1 unmapping, 4 granules, which are asked for twice, the addresses. The
 * account has ended with the context. */
TEST(what_the_end_could_not_give_back_goes_back_later)
{
    for (uint64_t at = 1; at <= 7; at++) {
        struct rs_mr *mr = make(GIB, NULL);
        struct rs_allocation block = take(mr, 100 * MIB);

        fake_vmm_watch(block.address, block.size_bytes, false);
        fake_vmm.fail_at = at;
        fake_vmm.fail_with = CUDA_ERROR_UNKNOWN;
        rs_mr_context_ended(mr);
        assert_int_equal(fake_vmm_is_clean(), at != 1 && at != 6);
        rs_account_lose(&account);
        rs_mr_retry_unfinished();
        assert_true(fake_vmm_is_clean());
        assert_int_equal(rs_account_held_bytes(&account), 0);
        rs_mr_destroy(mr, true);
    }
}

TEST(destroyed_it_is_tried_no_more)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation block = take(mr, 100 * MIB);
    uint64_t calls;

    fake_vmm_watch(block.address, block.size_bytes, false);
    fake_vmm.fail_at = 1;
    fake_vmm.fail_with = CUDA_ERROR_UNKNOWN;
    rs_mr_context_ended(mr);
    rs_mr_destroy(mr, true);
    calls = fake_vmm.calls;
    rs_mr_retry_unfinished();
    assert_int_equal(fake_vmm.calls, calls);
}
