/* SPDX-License-Identifier: Apache-2.0 */
/* How memory goes back to the driver: in the order of the library's stream where cuMemFree would
 * wait for the GPU, which may wait for this very thread. */
#include "leaf_site.h"

#include "base/request.h"
#include "free_sentinel.h"

FIXTURE(device_start, NULL);

/* cuMemFree would wait for the GPU, which may wait for this thread. */
TEST(device_memory_goes_back_in_order)
{
    struct rs_allocation a;
    struct site site;
    unsigned asked;

    make(&site, &rs_mr_descriptor_cuda, NULL);
    a = take(&site, 600 * MIB);
    assert_int_equal(rs_mr_deallocate(site.mr, &a, NULL), CUDA_SUCCESS);
    assert_int_equal(device.lingering_bytes, 600 * MIB); /* not by cuMemFree */
    assert_int_equal(site.device_account.charged_bytes, 600 * MIB);
    assert_int_equal(rs_mr_idle_bytes(site.mr), 600 * MIB);
    asked = device.asked;
    a = take(&site, 600 * MIB); /* the device has no room for both */
    assert_int_equal(device.asked, asked + 1);
    assert_int_equal(device.waits, 1);
    assert_int_equal(site.device_account.charged_bytes, 600 * MIB);
    give(&site, &a);
    end(&site);
}

/* Its channel may be behind work that waits for this thread. */
TEST(a_busy_stream_is_waited_for_a_while_only)
{
    struct rs_allocation a;
    struct site site;

    make(&site, &rs_mr_descriptor_cuda, NULL);
    site.device_account.limit_bytes = 1000 * MIB;
    a = take(&site, 600 * MIB);
    device.is_stuck = true;
    assert_int_equal(rs_mr_deallocate(site.mr, &a, NULL), CUDA_SUCCESS);
    refuse(&site, 600 * MIB, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(device.waits, 0);
    assert_int_equal(site.device_account.charged_bytes, 600 * MIB);
    device.is_stuck = false;
    a = take(&site, 600 * MIB);
    give(&site, &a);
    assert_int_equal(site.device_account.charged_bytes, 0);
    end(&site);
}

/* Of managed and pinned memory, and of what is not clean, the driver's free waits; without context
 * events nobody can say that it would not. */
TEST(no_request_waits_for_a_free)
{
    static const struct rs_mr_descriptor *const waiting[] = {
        &rs_mr_descriptor_cuda, &rs_mr_descriptor_managed, &rs_mr_descriptor_pinned};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(waiting); i++) {
        struct rs_allocation a;
        struct site site;
        make(&site, waiting[i], NULL);
        site.environment.frees_are_ready = waiting[i] != &rs_mr_descriptor_cuda;
        a = take(&site, MIB);
        rs_request_begin();
        assert_int_equal(rs_mr_deallocate(site.mr, &a, NULL), CUDA_ERROR_NOT_READY);
        rs_request_end();
        assert_true(is_segment(a.address));
        assert_int_equal(held(&site), MIB);
        assert_int_equal(rs_mr_deallocate(site.mr, &a, NULL), CUDA_SUCCESS);
        assert_int_equal(device.lingering_bytes, 0);
        end(&site);
    }
}

static const struct rs_mr_descriptor *const detached[] = {
    &rs_mr_descriptor_async, &rs_mr_descriptor_async_managed, &rs_mr_descriptor_system};

#define EACH_DETACHED(i) for (size_t i = 0; i < RS_ARRAY_LENGTH(detached); i++)

/* RMM_FREE=immediate: nobody above has waited for the work that uses a block. */
TEST(a_free_with_unfinished_work_waits_first)
{
    EACH_DETACHED(i)
    {
        struct rs_allocation block;
        struct site site;
        unsigned waits;
        make(&site, detached[i], NULL);
        block = take(&site, 3 * MIB);
        waits = device.sentinel_frees;
        give(&site, &block);
        assert_int_equal(device.sentinel_frees, waits);
        site.environment.frees_are_ready = false;
        block = take(&site, 3 * MIB);
        give(&site, &block);
        assert_int_equal(device.sentinel_frees, waits + 1);
        free_sentinel(&site.sentinel);
        site.environment.frees_are_ready = true;
        end(&site);
    }
}

/* The driver answers for the block until the stream has come to its free. */
TEST(a_free_that_waits_waits_for_its_stream_too)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    block = take(&site, MIB);
    device.unwaited = 1; /* set to 0 when the stream is asked */
    give(&site, &block);
    assert_int_equal(device.unwaited, 1);
    block = take(&site, MIB);
    device.unwaited = 1;
    assert_int_equal(rs_mr_deallocate_at_once(site.mr, &block), CUDA_SUCCESS);
    assert_int_equal(device.unwaited, 0);
    assert_false(rs_mr_frees_at_once());
    end(&site);
}
