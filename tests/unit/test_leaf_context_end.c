/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a leaf still has when its context has ended, and how it goes back. */
#include "leaf_site.h"

FIXTURE(device_start, NULL);

static const struct rs_mr_descriptor *const detached[] = {
    &rs_mr_descriptor_async, &rs_mr_descriptor_async_managed, &rs_mr_descriptor_system};

#define EACH_DETACHED(i) for (size_t i = 0; i < RS_ARRAY_LENGTH(detached); i++)

TEST(memory_that_outlives_its_context_goes_back)
{
    EACH_DETACHED(i)
    {
        struct rs_allocation block;
        struct site site;
        make(&site, detached[i], NULL);
        for (unsigned j = 0; j < 20; j++)
            block = take(&site, 3 * MIB);
        device.context_is_gone = true;
        rs_mr_context_ended(site.mr);
        assert_int_equal(held(&site), 0);
        assert_int_equal(device_used(), 0);
        assert_int_equal(device.block_count, 0);
        assert_false(is_segment(block.address));
        assert_int_equal(rs_mr_allocate(site.mr, 100, NULL, &block),
                         CUDA_ERROR_CONTEXT_IS_DESTROYED);
        rs_mr_destroy(site.mr, true);
        assert_int_equal(device.wrong_calls, 0);
        device_start(NULL);
    }
}

TEST(destroying_alone_gives_it_back_too)
{
    EACH_DETACHED(i)
    {
        struct site site;
        make(&site, detached[i], NULL);
        for (unsigned j = 0; j < 20; j++)
            (void)take(&site, 3 * MIB);
        device.context_is_gone = true;
        rs_mr_destroy(site.mr, true);
        assert_int_equal(held(&site), 0);
        assert_int_equal(device.block_count, 0);
        assert_int_equal(device.wrong_calls, 0);
        device_start(NULL);
    }
}

static void end_context(void)
{
    rs_mr_context_ended(device.ends_in_call);
    device.ends_in_call = NULL;
}

/* Another thread ends the context while this one is in a call. */
TEST(the_last_one_out_gives_it_back)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    block = take(&site, MIB);
    device.ends_in_call = site.mr;
    device.in_call = end_context;
    refuse(&site, MIB, CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_int_equal(device.block_count, 0);
    assert_int_equal(held(&site), 0);
    assert_int_equal(rs_mr_deallocate(site.mr, &block, NULL), CUDA_SUCCESS);
    assert_int_equal(rs_mr_trim(site.mr, 0), 0);
    assert_int_equal(rs_mr_idle_bytes(site.mr), 0);
    rs_mr_destroy(site.mr, true);
    assert_int_equal(device.wrong_calls, 0);
}

/* With no context current the driver may refuse; then it is ours until it does not. */
TEST(what_cannot_go_back_then_goes_back_later)
{
    struct rs_allocation block;
    struct site site, next;

    make(&site, &rs_mr_descriptor_async, NULL);
    (void)take(&site, MIB);
    block = take(&site, MIB);
    device.free_answer = CUDA_ERROR_INVALID_CONTEXT;
    device.context_is_gone = true;
    rs_mr_context_ended(site.mr);
    assert_int_equal(device.block_count, 2);
    assert_true(is_segment(block.address)); /* no free of the program's may reach it */
    device.free_answer = CUDA_SUCCESS;
    device.context_is_gone = false;
    make(&next, &rs_mr_descriptor_async, NULL);
    assert_int_equal(device.block_count, 0);
    assert_false(is_segment(block.address));
    rs_mr_destroy(site.mr, true);
    end(&next);
    assert_int_equal(device.wrong_calls, 0);
}

/* What it had reserved is the device's when the pool is gone, and nobody else knows of the pool. */
TEST(a_pool_that_cannot_end_then_ends_later)
{
    struct site site, next;

    make(&site, &rs_mr_descriptor_async, OPTIONS("initial_size=64MiB"));
    (void)take(&site, MIB);
    device.destroy_answer = CUDA_ERROR_UNKNOWN;
    device.context_is_gone = true;
    rs_mr_context_ended(site.mr);
    assert_int_equal(device.block_count, 0);
    assert_int_equal(device_used(), 64 * MIB);
    assert_int_equal(held(&site), 0);
    rs_mr_retry_unfinished();
    assert_int_equal(device_used(), 64 * MIB);
    device.destroy_answer = CUDA_SUCCESS;
    device.context_is_gone = false;
    make(&next, &rs_mr_descriptor_async, NULL);
    assert_int_equal(device_used(), 0);
    rs_mr_retry_unfinished(); /* once destroyed it is left alone */
    assert_int_equal(device.wrong_calls, 0);
    rs_mr_destroy(site.mr, true);
    end(&next);
    assert_int_equal(device.wrong_calls, 0);
}
