/* SPDX-License-Identifier: Apache-2.0 */
/* Every leaf: the memory it takes and gives back, its charges, and its answers without memory.
 * `virtual` has a driver and tests of its own. */
#include "leaf_site.h"

#include "host_memory.h"
#include "resource/report.h"

#include <errno.h>
#include <pthread.h>

FIXTURE(device_start, NULL);

static const struct rs_mr_descriptor *const leaves[] = {
    &rs_mr_descriptor_cuda,          &rs_mr_descriptor_managed, &rs_mr_descriptor_async,
    &rs_mr_descriptor_async_managed, &rs_mr_descriptor_pinned,  &rs_mr_descriptor_system,
    &rs_mr_descriptor_simulated,
};

#define EACH_LEAF(i) for (size_t i = 0; i < RS_ARRAY_LENGTH(leaves); i++)

TEST(the_table_has_no_other_leaf)
{
    size_t count = 0;

    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        count += rs_mr_descriptors[i]->upstream_count == 0 &&
                 rs_mr_descriptors[i] != &rs_mr_descriptor_virtual;
    assert_int_equal(count, RS_ARRAY_LENGTH(leaves));
}

TEST(what_is_held_is_charged_and_known)
{
    static const size_t sizes[] = {1, 511, 512, 513, 4096, 1000, 33333, 3 << 20};

    EACH_LEAF(i)
    {
        struct rs_allocation live[RS_ARRAY_LENGTH(sizes)];
        struct site site;
        size_t bytes = 0;
        make(&site, leaves[i], NULL);
        for (size_t j = 0; j < RS_ARRAY_LENGTH(sizes); j++) {
            live[j] = take(&site, sizes[j]);
            bytes += sizes[j];
            assert_true(site.device_account.held_bytes[leaves[i]->memory] >= bytes);
            assert_true(leaves[i] == &rs_mr_descriptor_simulated ||
                        is_segment(live[j].address + sizes[j] - 1));
            for (size_t k = 0; k < j; k++)
                assert_true(live[k].address + sizes[k] <= live[j].address ||
                            live[j].address + sizes[j] <= live[k].address);
        }
        host_left = 0; /* frees need no memory */
        for (size_t j = 0; j < RS_ARRAY_LENGTH(sizes); j++) {
            give(&site, &live[j]);
            assert_false(is_segment(live[j].address));
        }
        host_left = -1;
        assert_int_equal(held(&site), rs_mr_idle_bytes(site.mr));
        (void)rs_mr_trim(site.mr, 0);
        assert_int_equal(held(&site), 0);
        end(&site);
        assert_int_equal(device.block_count, 0);
        assert_int_equal(device_used(), 0);
    }
}

TEST(what_is_taken_and_given_back_is_counted)
{
    struct rs_report report = {.count = 0};
    struct rs_allocation first, second;
    struct site site;

    make(&site, &rs_mr_descriptor_cuda, NULL);
    first = take(&site, 3 * MIB);
    second = take(&site, 2 * MIB);
    give(&site, &first);
    site.mr->ops.report(site.mr, &report);
    assert_int_equal(rs_report_value(&report, "cuda", "driver_allocations", 0), 2);
    assert_int_equal(rs_report_value(&report, "cuda", "driver_frees", 0), 1);
    assert_int_equal(rs_report_value(&report, "cuda", "held", 0), 2 * MIB);
    assert_int_equal(rs_report_value(&report, "cuda", "held_peak", 0), 5 * MIB);
    rs_report_release(&report);
    give(&site, &second);
    end(&site);
}

TEST(refusals_come_back_and_are_not_charged)
{
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 511, SIZE_MAX - 512, SIZE_MAX / 2,
                                  (size_t)1 << 50};

    EACH_LEAF(i)
    {
        struct site site;
        struct rs_allocation kept;
        size_t before;
        make(&site, leaves[i], NULL);
        kept = take(&site, 5000);
        before = held(&site);
        for (size_t j = 0; j < RS_ARRAY_LENGTH(huge); j++)
            refuse(&site, huge[j], CUDA_ERROR_OUT_OF_MEMORY);
        device.allocate_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
        if (leaves[i] != &rs_mr_descriptor_system && leaves[i] != &rs_mr_descriptor_simulated) {
            refuse(&site, 100, CUDA_ERROR_ILLEGAL_ADDRESS);
            device.allocate_answer = CUDA_ERROR_NOT_READY; /* of a leaf: ask with more effort */
            refuse(&site, 100, CUDA_ERROR_OUT_OF_MEMORY);
        }
        device.allocate_answer = CUDA_SUCCESS;
        (void)rs_mr_trim(site.mr, 0);
        assert_true(held(&site) <= before);
        give(&site, &kept);
        end(&site);
    }
}

/* Resources count on addresses that are multiples of 512, and CUDA promises 256. */
TEST(an_address_between_two_blocks_is_refused)
{
    EACH_LEAF(i)
    {
        struct site site;
        if (leaves[i] == &rs_mr_descriptor_system || leaves[i] == &rs_mr_descriptor_simulated)
            continue;
        make(&site, leaves[i], NULL);
        device.next_address += RS_BLOCK_ALIGNMENT / 2;
        refuse(&site, 5000, CUDA_ERROR_NOT_SUPPORTED);
        assert_int_equal(device.block_count, 0);
        device.next_address += RS_BLOCK_ALIGNMENT / 2;
        give(&site, (struct rs_allocation[]){take(&site, 5000)});
        (void)rs_mr_trim(site.mr, 0);
        assert_int_equal(held(&site), 0);
        end(&site);
    }
}

TEST(a_free_that_fails_leaves_the_block)
{
    EACH_LEAF(i)
    {
        struct site site;
        struct rs_allocation kept;
        if (leaves[i] == &rs_mr_descriptor_system || leaves[i] == &rs_mr_descriptor_simulated)
            continue;
        make(&site, leaves[i], NULL);
        kept = take(&site, 5000);
        device.free_answer = CUDA_ERROR_LAUNCH_FAILED;
        assert_int_equal(rs_mr_deallocate(site.mr, &kept, NULL), CUDA_ERROR_LAUNCH_FAILED);
        assert_true(is_segment(kept.address));
        device.free_answer = CUDA_SUCCESS;
        give(&site, &kept);
        end(&site);
    }
}

static void use_with_little_host_memory(const struct rs_mr_descriptor *descriptor)
{
    struct rs_allocation live[40];
    size_t count = 0, refused = 0;
    struct site site;
    int error = 0;

    host_left = -1;
    make(&site, descriptor, NULL); /* what outlives the leaf is there */
    give(&site, (struct rs_allocation[]){take(&site, 100)});
    end(&site);
    for (long allowed = 0; allowed == 0 || host_refused > 0; allowed++) {
        assert_in_range(allowed, 0, 200);
        host_refused = 0;
        host_left = allowed;
        site.mr = make_resource_at(&site.environment, descriptor, NULL, NULL, &error);
        assert_true(site.mr || error == -ENOMEM || error == -EIO);
        for (count = 0; site.mr && count < RS_ARRAY_LENGTH(live); count++) {
            CUresult result = rs_mr_allocate(site.mr, 700, NULL, &live[count]);
            assert_true(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
            if (result != CUDA_SUCCESS)
                break;
        }
        host_left = 0;
        while (count > 0)
            give(&site, &live[--count]);
        if (site.mr)
            end(&site);
        host_left = -1;
        refused += host_refused;
        assert_int_equal(device.block_count, 0);
        for (size_t i = 0; i < POOLS_MAX; i++) {
            assert_false(device.pools[i].is_live);
            device.pools[i].is_destroyed = false;
        }
    }
    assert_true(refused > 0); /* else nothing was missing */
}

TEST(every_missing_host_allocation_is_survived)
{
    EACH_LEAF(i)
    use_with_little_host_memory(leaves[i]);
}

TEST(a_limit_is_checked_before_the_driver_is_asked)
{
    EACH_LEAF(i)
    {
        struct site site;
        unsigned asked;
        make(&site, leaves[i], NULL);
        atomic_store(&site.device_account.limit_bytes, 64 * MIB);
        asked = device.asked;
        if (leaves[i]->memory == RS_MEMORY_HOST) {
            give(&site, (struct rs_allocation[]){take(&site, 80 * MIB)}); /* not the device's */
        } else {
            refuse(&site, 65 * MIB, CUDA_ERROR_OUT_OF_MEMORY);
            assert_int_equal(device.asked, asked);
            give(&site, (struct rs_allocation[]){take(&site, 64 * MIB)});
        }
        end(&site);
    }
}

/* ---- threads ---- */

enum { THREADS = 6, ROUNDS = 400 };

static void *take_and_give(void *data)
{
    struct site *site = data;
    uint64_t seed = 1 + (uintptr_t)&seed;
    struct rs_allocation live[8];
    bool is_live[8] = {false};

    for (unsigned round = 0; round < ROUNDS; round++) {
        size_t at = test_random(&seed) % 8;
        if (is_live[at])
            assert_int_equal(rs_mr_deallocate(site->mr, &live[at], NULL), CUDA_SUCCESS);
        is_live[at] = rs_mr_allocate(site->mr, 1 + test_random(&seed) % (2 * MIB), NULL,
                                     &live[at]) == CUDA_SUCCESS;
        if (round % 64 == 0)
            (void)rs_mr_trim(site->mr, 0);
        assert_true(atomic_load(&site->device_account.charged_bytes) <= 256 * MIB);
    }
    for (size_t at = 0; at < 8; at++)
        if (is_live[at])
            assert_int_equal(rs_mr_deallocate(site->mr, &live[at], NULL), CUDA_SUCCESS);
    return NULL;
}

TEST(threads_agree_on_what_is_held)
{
    EACH_LEAF(i)
    {
        pthread_t threads[THREADS];
        struct site site;
        make(&site, leaves[i], NULL);
        atomic_store(&site.device_account.limit_bytes, 256 * MIB);
        for (unsigned j = 0; j < THREADS; j++)
            assert_int_equal(pthread_create(&threads[j], NULL, take_and_give, &site), 0);
        for (unsigned j = 0; j < THREADS; j++)
            pthread_join(threads[j], NULL);
        assert_int_equal(device.block_count, 0);
        (void)rs_mr_trim(site.mr, 0);
        assert_int_equal(held(&site), 0);
        end(&site);
    }
}
