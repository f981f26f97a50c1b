/* SPDX-License-Identifier: Apache-2.0 */
/* How much `virtual` holds: its initial size, its maximum, its granularity, and what a trim leaves.
 */
#include "virtual_stack.h"

#include "driver/driver.h"
#include "shared/job_layout.h"

#include <stdatomic.h>
#include <string.h>

static size_t live_meanwhile;
static unsigned looks;

TEST(the_initial_size_is_there_and_stays)
{
    struct rs_mr *mr = make(GIB, OPTIONS("initial_size=100MiB"));
    struct rs_allocation block;

    assert_int_equal(fake_vmm.created_bytes, 128 * MIB);
    block = take(mr, 300 * MIB);
    give(mr, &block);
    assert_int_equal(rs_mr_idle_bytes(mr), fake_vmm.created_bytes);
    assert_true(rs_mr_trim(mr, 0) > 0);
    assert_good(mr);
    assert_int_equal(fake_vmm.created_bytes, 128 * MIB);
    end(mr);
}

/* It goes for the sake of device memory alone, as that of `pool` and `async`. */
TEST(the_initial_size_goes_back_before_a_request_fails)
{
    struct rs_mr *mr = make(GIB, OPTIONS("initial_size=100MiB"));
    struct rs_allocation block = take(mr, 512);

    assert_int_equal(rs_mr_trim_all(mr, ~(1u << RS_MEMORY_DEVICE)), 0);
    assert_int_equal(rs_mr_trim_all(mr, 1u << RS_MEMORY_DEVICE), 96 * MIB);
    assert_good(mr);
    assert_int_equal(fake_vmm.created_bytes, 32 * MIB); /* where the live block is */
    give(mr, &block);
    end(mr);
}

TEST(an_initial_size_larger_than_what_is_free_starts_smaller)
{
    struct rs_mr *mr = make(300 * MIB, OPTIONS("initial_size=1GiB"));

    assert_int_equal(fake_vmm.created_bytes, 256 * MIB);
    end(mr);
}

/* All that is charged and not live, as another thread sees it that is refused meanwhile. */
static void look_at_what_goes_back(void)
{
    size_t seen_bytes = atomic_load(&account.returning_bytes) + atomic_load(&account.asked_bytes);

    assert_true(seen_bytes >= atomic_load(&account.charged_bytes) - live_meanwhile);
    looks++;
}

TEST(what_a_trim_has_in_hand_is_seen)
{
    struct rs_mr *mr = make(GIB, OPTIONS("granularity=2MiB"));
    struct rs_allocation kept = take(mr, 32 * MIB), freed = take(mr, 64 * MIB);

    give(mr, &freed);
    looks = 0;
    live_meanwhile = 32 * MIB;
    fake_vmm.on_release = look_at_what_goes_back;
    assert_int_equal(rs_mr_trim(mr, 0), 64 * MIB);
    assert_int_equal(looks, 32);
    assert_int_equal(atomic_load(&account.returning_bytes), 0);
    fake_vmm.on_release = NULL;
    give(mr, &kept);
    end(mr);
}

/* Of a block whose granules are not all to be had those that came go back. */
TEST(what_was_created_in_vain_is_seen)
{
    struct rs_mr *mr = make(64 * MIB, OPTIONS("granularity=2MiB"));
    struct rs_allocation kept = take(mr, 32 * MIB), refused;

    looks = 0;
    live_meanwhile = 32 * MIB;
    fake_vmm.on_release = look_at_what_goes_back;
    assert_int_equal(rs_mr_allocate(mr, 48 * MIB, NULL, &refused), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(looks > 0);
    assert_int_equal(atomic_load(&account.asked_bytes), 0);
    assert_int_equal(atomic_load(&account.charged_bytes), 32 * MIB);
    fake_vmm.on_release = NULL;
    give(mr, &kept);
    end(mr);
}

TEST(trim_keeps_what_it_is_told_to)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation low = take(mr, 512), block = take(mr, 320 * MIB), high = take(mr, 512);
    size_t created_bytes = fake_vmm.created_bytes, trimmed_bytes;

    give(mr, &block);
    assert_int_equal(rs_mr_trim(mr, SIZE_MAX), 0);
    trimmed_bytes = rs_mr_trim(mr, 97 * MIB);
    assert_int_equal(trimmed_bytes, created_bytes - fake_vmm.created_bytes);
    assert_good(mr);
    assert_in_range(rs_mr_idle_bytes(mr), 128 * MIB, 128 * MIB + 64 * MIB);
    (void)rs_mr_trim(mr, 0);
    assert_good(mr);
    assert_in_range(fake_vmm.created_bytes, 32 * MIB, 64 * MIB); /* where live blocks are */
    assert_true(fake_vmm_is_usable(low.address, 512));
    assert_true(fake_vmm_is_usable(high.address, 512));
    give(mr, &low);
    give(mr, &high);
    (void)rs_mr_trim(mr, 0);
    assert_int_equal(fake_vmm.created_bytes, 0);
    low = take(mr, 100 * MIB);
    give(mr, &low);
    end(mr);
}

TEST(the_maximum_and_the_limit_are_kept)
{
    struct rs_mr *mr = make(GIB, OPTIONS("maximum_size=100MiB", "granularity=32MiB"));
    struct rs_allocation block = take(mr, 90 * MIB), other;

    refuse(mr, 7 * MIB);
    other = take(mr, 6 * MIB);
    assert_int_equal(fake_vmm.peak_bytes, 96 * MIB);
    give(mr, &block);
    give(mr, &other);
    (void)rs_mr_trim(mr, 0);
    atomic_store(&account.limit_bytes, 64 * MIB);
    refuse(mr, 65 * MIB);
    assert_int_equal(fake_vmm.created_bytes, 0); /* what was created for it went back */
    other = take(mr, 64 * MIB);
    give(mr, &other);
    end(mr);
}

static struct rs_job_share *job_share;

static size_t granularity_at(size_t total_bytes, size_t limit_bytes, size_t device_bytes,
                             const char *maximum)
{
    struct rs_allocation block;
    struct rs_mr *mr;
    size_t bytes;
    int error;

    fake_vmm_install(GIB);
    fake_vmm.granularity_bytes = device_bytes;
    rs_account_begin(&account, NULL);
    account.job = job_share;
    atomic_store(&account.limit_bytes, limit_bytes);
    environment = (struct rs_environment){
        .total_bytes = total_bytes, .frees_are_ready = true, .account = &account};
    mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL, OPTIONS(maximum), &error);
    assert_non_null(mr);
    block = take(mr, 1);
    bytes = fake_vmm.created_bytes;
    give(mr, &block);
    end(mr);
    return bytes;
}

TEST(the_granularity_follows_the_size)
{
    assert_int_equal(granularity_at(80 * GIB, 0, 2 * MIB, NULL), 32 * MIB);
    assert_int_equal(granularity_at(40 * GIB, 0, 2 * MIB, NULL), 16 * MIB);
    assert_int_equal(granularity_at(8 * GIB, 0, 2 * MIB, NULL), 4 * MIB);
    assert_int_equal(granularity_at(64 * MIB, 0, 2 * MIB, NULL), 2 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 16 * GIB, 2 * MIB, NULL), 8 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 34 * MIB, 2 * MIB, NULL), 2 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 0, 2 * MIB, "maximum_size=8GiB"), 4 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 0, 64 * MIB, NULL), 64 * MIB);
}

/* It is chosen once: what other processes have taken at that moment does not count. */
TEST(the_granularity_follows_the_limit_of_the_job)
{
    static struct rs_job_limit job;
    struct rs_job_share share = {.job = &job, .limit_bytes = 16 * GIB};
    struct rs_job_share other = share;

    if (rs_job_limit_init(&job, (struct rs_size){16 * GIB, RS_SIZE_BYTES}) != 0)
        return; /* a kernel without robust mutexes */
    share.member = rs_job_limit_join(&job);
    rs_job_share_enter(&share);
    other.member = rs_job_limit_join(&job);
    assert_true(rs_job_share_take(&other, 12 * GIB));
    job_share = &share;
    assert_int_equal(granularity_at(80 * GIB, 0, 2 * MIB, NULL), 8 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 8 * GIB, 2 * MIB, NULL), 4 * MIB);
    job_share = NULL;
}

TEST(no_size_wraps)
{
    static const size_t huge[] = {SIZE_MAX,     SIZE_MAX - 511, SIZE_MAX - 512,
                                  SIZE_MAX / 2, SIZE_MAX - 1,   (size_t)1 << 50,
                                  81 * GIB,     80 * GIB + 1,   SIZE_MAX - 32 * MIB};
    struct rs_mr *mr = make(80 * GIB, NULL);
    struct rs_allocation block = take(mr, 5000);

    for (size_t i = 0; i < RS_ARRAY_LENGTH(huge); i++)
        refuse(mr, huge[i]);
    assert_int_equal(fake_vmm.created_bytes, 32 * MIB);
    give(mr, &block);
    end(mr);
}

static bool are_valid(const struct rs_environment *at, const char *const *options,
                      const char *expected)
{
    char line[300];
    bool valid = options_are_valid(&rs_mr_descriptor_virtual, at, options, line, sizeof(line));

    if (expected)
        assert_non_null(strstr(line, expected));
    return valid;
}

TEST(bad_settings_are_one_clear_line)
{
    fake_vmm_install(GIB);
    environment = (struct rs_environment){.total_bytes = 80 * GIB};
    assert_true(are_valid(&environment, NULL, NULL));
    assert_true(are_valid(NULL, NULL, NULL));
    assert_false(are_valid(NULL, OPTIONS("granularity=48MiB"), "power of two"));
    assert_false(are_valid(NULL, OPTIONS("granularity=1MiB"), "granularity"));
    assert_false(are_valid(NULL, OPTIONS("maximum_size=1MiB"), "below the granularity"));
    assert_false(are_valid(NULL, OPTIONS("maximum_size=16MiB", "granularity=32MiB"),
                           "below the granularity"));
    assert_false(
        are_valid(NULL, OPTIONS("maximum_size=64MiB", "initial_size=65MiB"), "initial size"));
    assert_false(are_valid(NULL, OPTIONS("initial_size=255"), "256"));
    assert_false(are_valid(&environment, OPTIONS("initial_size=81GiB"), "larger than the device"));
    environment.total_bytes = 16 * MIB;
    assert_true(are_valid(&environment, NULL, NULL));
    assert_false(are_valid(&environment, OPTIONS("granularity=32MiB"), "larger than the device"));
    environment.total_bytes = 80 * GIB;
    fake_vmm.granularity_bytes = 64 * MIB;
    assert_true(are_valid(&environment, NULL, NULL));
    assert_false(
        are_valid(&environment, OPTIONS("granularity=32MiB"), "multiple of the device's own"));
    fake_vmm.is_supported = false;
    assert_false(are_valid(&environment, NULL, "virtual memory management"));
    fake_vmm_install(GIB);
    rs_driver.cuMemMap = NULL;
    assert_false(are_valid(&environment, NULL, "virtual memory management"));
}

TEST(what_is_held_can_no_longer_be_grown_by)
{
    struct rs_mr *mr = make(GIB, OPTIONS("granularity=32MiB"));
    size_t growable_bytes = rs_mr_growable_bytes(mr);
    struct rs_allocation block = take(mr, 64 * MIB);

    assert_int_equal(rs_mr_growable_bytes(mr), growable_bytes - 64 * MIB);
    give(mr, &block);
    end(mr);
}
