/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's pools under a leaf: their settings, the bytes charged for them, and how they serve
 * when the device is full. */
#include "leaf_site.h"

#include "driver/driver.h"

#include <time.h>

FIXTURE(device_start, NULL);

static const struct rs_mr_descriptor *const pooled[] = {&rs_mr_descriptor_async,
                                                        &rs_mr_descriptor_async_managed};

#define EACH_POOLED(i) for (size_t i = 0; i < RS_ARRAY_LENGTH(pooled); i++)

TEST(line_47_a_pool_has_an_initial_size_and_a_release_threshold)
{
    EACH_POOLED(i)
    {
        struct rs_environment second;
        struct site site;
        int error;
        make(&site, pooled[i], OPTIONS("initial_pool_size=100MiB"));
        assert_true(site.pool->threshold == UINT64_MAX);
        assert_true(site.pool->reserved_bytes >= 100 * MIB);
        assert_int_equal(held(&site), site.pool->reserved_bytes);
        (void)rs_mr_trim(site.mr, 0);
        assert_true(site.pool->reserved_bytes >= 100 * MIB);
        give(&site, (struct rs_allocation[]){take(&site, 100 * MIB)});
        second = site.environment;
        second.first_on_device = false; /* takes no initial pool */
        rs_mr_destroy(site.mr, false);
        site.mr =
            make_resource_at(&second, pooled[i], NULL, OPTIONS("initial_size=100MiB"), &error);
        assert_int_equal(held(&site), 0);
        end(&site);
        make(&site, pooled[i], OPTIONS("release_threshold=123456"));
        assert_int_equal(site.pool->threshold, 123456);
        end(&site);
    }
}

TEST(line_48_and_49_each_has_a_pool_of_its_own)
{
    struct site first, second;

    EACH_POOLED(i)
    {
        struct rs_allocation block;
        make(&first, pooled[i], NULL);
        make(&second, pooled[i], NULL);
        assert_ptr_not_equal(first.pool, second.pool);
        block = take(&second, MIB);
        end(&first);
        give(&second, &block);
        end(&second);
    }
}

TEST(line_52_managed_pools_are_managed)
{
    struct site site;

    make(&site, &rs_mr_descriptor_async_managed, NULL);
    assert_int_equal(site.pool->properties.allocType, CU_MEM_ALLOCATION_TYPE_MANAGED);
    take(&site, 100);
    assert_int_equal(atomic_load(&site.device_account.held_bytes[RS_MEMORY_DEVICE]), 0);
    assert_int_equal(atomic_load(&site.device_account.held_bytes[RS_MEMORY_MANAGED]), POOL_STEP);
    end(&site);
    make(&site, &rs_mr_descriptor_async, NULL);
    assert_int_equal(site.pool->properties.allocType, CU_MEM_ALLOCATION_TYPE_PINNED);
    end(&site);
}

TEST(a_block_is_handed_out_when_its_allocation_is_complete)
{
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    for (unsigned i = 0; i < 10; i++) {
        (void)take(&site, MIB);
        assert_int_equal(device.unwaited, 0);
    }
    device.wait_answer = CUDA_ERROR_LAUNCH_FAILED;
    refuse(&site, MIB, CUDA_ERROR_LAUNCH_FAILED);
    device.wait_answer = CUDA_SUCCESS;
    assert_int_equal(device.block_count, 10);
    end(&site);
    assert_int_equal(device.block_count, 0);
}

TEST(what_is_reserved_counts)
{
    struct rs_allocation one, two;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    one = take(&site, MIB);
    assert_int_equal(held(&site), POOL_STEP);
    assert_int_equal(rs_mr_idle_bytes(site.mr), POOL_STEP - MIB);
    two = take(&site, 40 * MIB);
    assert_int_equal(held(&site), 3 * POOL_STEP);
    give(&site, &one);
    give(&site, &two);
    assert_int_equal(held(&site), 3 * POOL_STEP);
    assert_int_equal(rs_mr_idle_bytes(site.mr), 3 * POOL_STEP);
    assert_int_equal(rs_mr_trim(site.mr, 10 * MIB), 3 * POOL_STEP - 10 * MIB);
    assert_int_equal(held(&site), 10 * MIB);
    end(&site);
}

TEST(what_the_driver_takes_back_counts_no_more)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, OPTIONS("release_threshold=0"));
    block = take(&site, 40 * MIB);
    give(&site, &block);
    assert_int_equal(rs_mr_idle_bytes(site.mr), 0);
    assert_int_equal(held(&site), 0);
    end(&site);
}

/* The driver may be late, too: its pool is trimmed to the threshold. */
TEST(what_is_above_the_threshold_goes_back_when_the_program_synchronises)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, OPTIONS("release_threshold=8MiB"));
    assert_true(site.mr->has_threshold);
    site.pool->threshold = UINT64_MAX;
    block = take(&site, 40 * MIB);
    assert_int_equal(rs_mr_excess_bytes(site.mr), 2 * POOL_STEP - 8 * MIB);
    rs_mr_synchronise(site.mr,
                      RS_SYNCHRONISE_END_ALL); /* all of it is used, but a part of a step */
    assert_int_equal(held(&site), 40 * MIB);
    give(&site, &block);
    rs_mr_synchronise(site.mr, RS_SYNCHRONISE_BEGIN);
    assert_int_equal(held(&site), 40 * MIB);
    rs_mr_synchronise(site.mr, RS_SYNCHRONISE_END_SOME);
    assert_int_equal(held(&site), 8 * MIB);
    assert_int_equal(rs_mr_excess_bytes(site.mr), 0);
    end(&site);
    make(&site, &rs_mr_descriptor_async, NULL);
    assert_false(site.mr->has_threshold);
    block = take(&site, 40 * MIB);
    give(&site, &block);
    assert_int_equal(rs_mr_excess_bytes(site.mr), 0);
    rs_mr_synchronise(site.mr, RS_SYNCHRONISE_END_ALL);
    assert_int_equal(held(&site), 2 * POOL_STEP);
    end(&site);
}

TEST(idle_memory_serves_below_the_limit)
{
    struct rs_allocation one, two;
    struct site site;
    unsigned asked;

    make(&site, &rs_mr_descriptor_async, NULL);
    atomic_store(&site.device_account.limit_bytes, 48 * MIB);
    one = take(&site, MIB);
    two = take(&site, 31 * MIB); /* with another step charged it would not fit */
    assert_int_equal(held(&site), POOL_STEP);
    asked = device.asked;
    refuse(&site, MIB, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(device.asked, asked);
    give(&site, &one);
    give(&site, &two);
    end(&site);
}

/* The pool said that it had enough and grew all the same. */
TEST(growth_past_the_limit_is_undone)
{
    struct rs_allocation kept;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    kept = take(&site, MIB);
    atomic_store(&site.device_account.limit_bytes, POOL_STEP);
    device.pools_grow_always = true;
    refuse(&site, 4 * MIB, CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(site.pool->reserved_bytes <= POOL_STEP);
    assert_true(held(&site) <= POOL_STEP);
    assert_int_equal(device.block_count, 1);
    give(&site, &kept);
    end(&site);
}

TEST(only_what_is_idle_serves_without_asking)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    assert_int_equal(rs_mr_allocate_with(site.mr, MIB, NULL, RS_EFFORT_HELD, &block),
                     CUDA_ERROR_NOT_READY);
    (void)take(&site, MIB);
    assert_int_equal(rs_mr_allocate_with(site.mr, MIB, NULL, RS_EFFORT_HELD, &block), CUDA_SUCCESS);
    assert_int_equal(rs_mr_allocate_with(site.mr, 40 * MIB, NULL, RS_EFFORT_HELD, &block),
                     CUDA_ERROR_NOT_READY);
    end(&site);
}

/* What is idle is in pieces that are too small.  The attempt is not repeated until something that
 * can make a larger piece was given back; a caller with no other way tries after every free. */
TEST(a_held_request_leaves_the_pool_as_it_is)
{
    EACH_POOLED(i)
    {
        struct rs_allocation small, large, block;
        struct site site;
        unsigned asked;
        make(&site, pooled[i], NULL);
        small = take(&site, MIB);
        large = take(&site, 8 * MIB);
        device.pools_grow_always = true;
        asked = device.asked;
        for (unsigned j = 0; j < 3; j++)
            assert_int_equal(rs_mr_allocate_with(site.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &block),
                             CUDA_ERROR_NOT_READY);
        assert_int_equal(device.asked, asked + 1);
        assert_int_equal(site.pool->reserved_bytes, POOL_STEP);
        assert_int_equal(held(&site), POOL_STEP);
        assert_int_equal(device.block_count, 2);
        give(&site, &small);
        assert_int_equal(rs_mr_allocate_with(site.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &block),
                         CUDA_ERROR_NOT_READY);
        assert_int_equal(device.asked, asked + 1);
        assert_int_equal(
            rs_mr_allocate_with(site.mr, 4 * MIB, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY, &block),
            CUDA_ERROR_NOT_READY);
        assert_int_equal(
            rs_mr_allocate_with(site.mr, 5 * MIB, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY, &block),
            CUDA_ERROR_NOT_READY);
        assert_int_equal(device.asked, asked + 2);
        device.pools_grow_always = false;
        assert_int_equal(rs_mr_allocate_with(site.mr, MIB, NULL, RS_EFFORT_HELD, &block),
                         CUDA_SUCCESS);
        give(&site, &large);
        assert_int_equal(rs_mr_allocate_with(site.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &block),
                         CUDA_SUCCESS);
        assert_int_equal(held(&site), POOL_STEP);
        end(&site);
    }
}

/* A request that may grow is served as ever, and what its growth left serves the next. */
TEST(what_a_growth_leaves_serves_held_requests)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    (void)take(&site, MIB);
    device.pools_grow_always = true;
    assert_int_equal(rs_mr_allocate_with(site.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &block),
                     CUDA_ERROR_NOT_READY);
    (void)take(&site, 4 * MIB);
    assert_int_equal(held(&site), 2 * POOL_STEP);
    device.pools_grow_always = false;
    assert_int_equal(rs_mr_allocate_with(site.mr, 4 * MIB, NULL, RS_EFFORT_HELD, &block),
                     CUDA_SUCCESS);
    end(&site);
}

TEST(a_full_device_is_no_answer_to_a_held_request)
{
    struct rs_allocation block;
    struct site site;

    make(&site, &rs_mr_descriptor_async, NULL);
    (void)take(&site, MIB);
    device.allocate_answer = CUDA_ERROR_OUT_OF_MEMORY;
    assert_int_equal(rs_mr_allocate_with(site.mr, MIB, NULL, RS_EFFORT_HELD, &block),
                     CUDA_ERROR_NOT_READY);
    device.allocate_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(
        rs_mr_allocate_with(site.mr, 1000, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY, &block),
        CUDA_ERROR_ILLEGAL_ADDRESS);
    device.allocate_answer = CUDA_SUCCESS;
    end(&site);
}

/* The stream of ours stands behind work of the program's that waits for this thread. */
TEST(no_request_waits_without_end)
{
    struct rs_allocation block;
    struct site site;
    uint64_t begin_ns;

    make(&site, &rs_mr_descriptor_async, NULL);
    block = take(&site, 40 * MIB);
    give(&site, &block);
    device.is_stuck = true;
    clock_step_ns = 1000000000;
    begin_ns = clock_ahead_ns;
    assert_int_equal(rs_mr_allocate_with(site.mr, MIB, NULL, RS_EFFORT_HELD, &block),
                     CUDA_ERROR_NOT_READY);
    (void)rs_mr_trim(site.mr, 0);
    assert_in_range(clock_ahead_ns - begin_ns, 1, 6 * clock_step_ns);
    begin_ns = clock_ahead_ns;
    refuse(&site, MIB, CUDA_ERROR_OUT_OF_MEMORY);
    assert_in_range(clock_ahead_ns - begin_ns, 15 * clock_step_ns, 18 * clock_step_ns);
    clock_step_ns = 0;
    device.is_stuck = false;
    assert_int_equal(device.block_count, 0); /* freed in the order of the stream */
    end(&site);
}

TEST(a_pool_can_be_shared_where_asked_for_and_by_default_where_it_gives_memory_back)
{
    static const struct {
        const struct rs_mr_descriptor *descriptor;
        const char *option;
        int version;
        bool shares_pools, is_shared;
    } cases[] = {
        {&rs_mr_descriptor_async, NULL, 13000, true, true},
        {&rs_mr_descriptor_async, NULL, 12090, true, false},
        {&rs_mr_descriptor_async, NULL, 13000, false, false},
        {&rs_mr_descriptor_async, "ipc=auto", 13000, true, true},
        {&rs_mr_descriptor_async, "ipc=auto", 12090, true, false},
        {&rs_mr_descriptor_async, "ipc=true", 12090, true, true},
        {&rs_mr_descriptor_async, "ipc=1", 12090, true, true},
        {&rs_mr_descriptor_async, "enable_ipc=yes", 12090, true, true},
        {&rs_mr_descriptor_async, "ipc=on", 12090, true, true},
        {&rs_mr_descriptor_async, "ipc=false", 13000, true, false},
        {&rs_mr_descriptor_async, "ipc=0", 13000, true, false},
        {&rs_mr_descriptor_async, "enable_ipc=no", 13000, true, false},
        {&rs_mr_descriptor_async, "ipc=off", 13000, true, false},
        {&rs_mr_descriptor_async_managed, NULL, 13000, true, false},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct site site;
        device_start(NULL);
        device.version = cases[i].version;
        device.shares_pools = cases[i].shares_pools;
        make(&site, cases[i].descriptor, OPTIONS(cases[i].option));
        assert_int_equal(site.pool->properties.handleTypes,
                         cases[i].is_shared ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                            : CU_MEM_HANDLE_TYPE_NONE);
        end(&site);
    }
}

static CUresult (*create_pool)(CUmemoryPool *pool, const CUmemPoolProps *properties);

static CUresult create_unshared_pool(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    return properties->handleTypes == CU_MEM_HANDLE_TYPE_NONE ? create_pool(pool, properties)
                                                              : CUDA_ERROR_NOT_SUPPORTED;
}

TEST(where_shared_pools_are_refused_the_default_is_one_that_cannot_be_shared)
{
    struct site site;

    create_pool = rs_driver.cuMemPoolCreate;
    rs_driver.cuMemPoolCreate = create_unshared_pool;
    make(&site, &rs_mr_descriptor_async, NULL);
    assert_int_equal(site.pool->properties.handleTypes, CU_MEM_HANDLE_TYPE_NONE);
    end(&site);
}

TEST(unsupported_is_a_bad_setting)
{
    struct rs_environment environment = {.total_bytes = GIB};
    char line[256];

    device.has_pools = false;
    assert_false(
        options_are_valid(&rs_mr_descriptor_async, &environment, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "memory pools"));
    assert_true(options_are_valid(&rs_mr_descriptor_async, NULL, NULL, line, sizeof(line)));
    device.has_pools = true;
    rs_driver.cuMemPoolCreate = NULL;
    assert_false(
        options_are_valid(&rs_mr_descriptor_async, &environment, NULL, line, sizeof(line)));
    device_start(NULL);
    device.shares_pools = false;
    assert_false(options_are_valid(&rs_mr_descriptor_async, &environment, OPTIONS("ipc=true"), line,
                                   sizeof(line)));
    assert_non_null(strstr(line, "ipc=true"));
    assert_true(options_are_valid(&rs_mr_descriptor_async, &environment, OPTIONS("ipc=auto"), line,
                                  sizeof(line)));
    device.version = 12080;
    assert_true(options_are_valid(&rs_mr_descriptor_async, &environment, NULL, line, sizeof(line)));
    assert_false(
        options_are_valid(&rs_mr_descriptor_async_managed, &environment, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "13.0"));
    assert_false(options_are_valid(&rs_mr_descriptor_async, &environment,
                                   OPTIONS("initial_size=2GiB"), line, sizeof(line)));
}
