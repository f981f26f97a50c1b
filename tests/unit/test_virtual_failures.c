/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever driver call fails under `virtual`, no memory is lost. */
#include "virtual_stack.h"

#include "host_memory.h"

/* 4 granules of 32 MiB that the driver would neither make usable nor unmap. */
static struct rs_mr *make_stuck(void)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation none;

    fake_vmm.fail_at = 4 + 4 + 1; /* creations, mappings, access; and what undoes them */
    fake_vmm.fails_from_then_on = true;
    fake_vmm.fail_with = CUDA_ERROR_UNKNOWN;
    assert_int_equal(rs_mr_allocate(mr, 100 * MIB, NULL, &none), CUDA_ERROR_UNKNOWN);
    assert_int_equal(fake_vmm.mappings, 4);
    assert_int_equal(rs_mr_trim(mr, 0), 0);
    assert_int_equal(fake_vmm.mappings, 4);
    assert_good(mr);
    fake_vmm.fail_at = 0;
    return mr;
}

TEST(a_trim_gives_back_what_was_stuck)
{
    struct rs_mr *mr = make_stuck();

    assert_int_equal(rs_mr_trim(mr, 0), 128 * MIB);
    assert_good(mr);
    assert_int_equal(fake_vmm.created_bytes, 0);
    end(mr);
}

TEST(a_growth_uses_what_was_stuck)
{
    struct rs_mr *mr = make_stuck();
    struct rs_allocation block = take(mr, 128 * MIB);

    assert_int_equal(fake_vmm.creations, 4);
    assert_good(mr);
    give(mr, &block);
    end(mr);
}

/* Growth, a move with creation, a trim: every driver call there is.  What fails says so and costs
 * nothing that was live. */
static void use_everything(CUresult expected)
{
    static const size_t sizes[] = {1000, 100 * MIB, 512, 64 * MIB, 512, 512};
    struct rs_allocation live[RS_ARRAY_LENGTH(sizes)], large;
    bool is_live[RS_ARRAY_LENGTH(sizes)];
    struct rs_mr *mr;
    CUresult result;
    int error;

    environment.account = &account;
    mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL,
                          OPTIONS("initial_size=32MiB"), &error);
    if (!mr)
        return;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        result = try_take(mr, sizes[i], &live[i]);
        is_live[i] = result == CUDA_SUCCESS;
        assert_true(is_live[i] || result == expected);
        assert_good(mr);
    }
    for (size_t i = 1; i < RS_ARRAY_LENGTH(sizes); i += 2)
        if (is_live[i])
            give(mr, &live[i]);
    result = try_take(mr, 190 * MIB, &large);
    assert_true(result == CUDA_SUCCESS || result == expected);
    assert_good(mr);
    if (result == CUDA_SUCCESS)
        give(mr, &large);
    (void)rs_mr_trim(mr, 40 * MIB);
    assert_good(mr);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i += 2)
        if (is_live[i]) {
            assert_true(fake_vmm_is_usable(live[i].address, sizes[i]));
            give(mr, &live[i]);
        }
    (void)rs_mr_trim(mr, 0);
    assert_good(mr);
    if (!fake_vmm.fails_from_then_on)
        fake_vmm.fail_at = 0;
    rs_mr_destroy(mr, false);
}

static const struct {
    CUresult of_driver, expected;
} errors[] = {
    {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY},
    {CUDA_ERROR_UNKNOWN, CUDA_ERROR_UNKNOWN},
    {CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED},
    {CUDA_ERROR_NOT_READY, CUDA_ERROR_OUT_OF_MEMORY}, /* of a resource: ask with more effort */
};

TEST(every_failing_call_is_survived)
{
    uint64_t calls;

    rs_mr_destroy(make(GIB, NULL), false);
    use_everything(CUDA_SUCCESS);
    calls = fake_vmm.calls;
    assert_true(calls > 20);
    assert_true(fake_vmm.unmappings > 0);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(errors); i++)
        for (uint64_t at = 1; at < calls; at++) {
            fake_vmm_install(GIB);
            rs_account_begin(&account, NULL);
            fake_vmm.fail_at = at;
            fake_vmm.fail_with = errors[i].of_driver;
            use_everything(errors[i].expected);
            if (fake_vmm.calls <= 2) /* the reservation: there is nothing to destroy */
                continue;
            assert_true(fake_vmm_is_clean());
            assert_int_equal(rs_account_held_bytes(&account), 0);
        }
}

TEST(a_driver_that_fails_for_ever_is_survived)
{
    for (size_t i = 1; i < RS_ARRAY_LENGTH(errors); i++)
        for (uint64_t at = 1; at < 60; at++) {
            rs_mr_destroy(make(GIB, NULL), false);
            fake_vmm.fail_at = at;
            fake_vmm.fails_from_then_on = true;
            fake_vmm.fail_with = errors[i].of_driver;
            use_everything(errors[i].expected);
            assert_int_equal(fake_vmm.wrong_calls, 0);
        }
}

static void use_with_little_host_memory(void)
{
    static const size_t sizes[] = {100 * MIB, 512, 100 * MIB, 160 * MIB};
    struct rs_allocation live[RS_ARRAY_LENGTH(sizes)] = {{0}};
    int error;
    struct rs_mr *mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL,
                                        OPTIONS("granularity=32MiB"), &error);

    for (size_t i = 0; mr && i < RS_ARRAY_LENGTH(sizes); i++) {
        CUresult result = rs_mr_allocate(mr, sizes[i], NULL, &live[i]);
        long left = host_left;
        assert_true(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
        host_left = left < 0 ? -1 : 0; /* frees need no memory */
        if (i == 2 && live[0].size_bytes)
            assert_int_equal(rs_mr_deallocate(mr, &live[0], NULL), CUDA_SUCCESS);
        host_left = left;
        assert_good(mr);
    }
    if (!mr)
        return;
    (void)rs_mr_trim(mr, 0);
    assert_good(mr);
    host_left = host_left < 0 ? -1 : 0;
    rs_mr_destroy(mr, false);
}

TEST(every_missing_host_allocation_is_survived)
{
    long allowed = 0;

    rs_mr_destroy(make(GIB, NULL), false);
    do {
        fake_vmm_install(GIB);
        rs_account_begin(&account, NULL);
        host_refused = 0;
        host_left = allowed++;
        use_with_little_host_memory();
        host_left = -1;
        assert_true(fake_vmm_is_clean());
    } while (host_refused > 0 && allowed < 1000);
    assert_in_range(allowed, 4, 999); /* three rounds at least were refused something */
}
