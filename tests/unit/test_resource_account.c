/* SPDX-License-Identifier: Apache-2.0 */
/* The account of a device, and the device bytes that allocations really take. */
#include "unit.h"

#include "ledger/account.h"
#include "shared/job_layout.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static size_t charged_bytes;

static struct rs_account device, first, second;

static int setup(void **state)
{
    (void)state;
    if (first.device) { /* of the test before */
        rs_account_lose(&first);
        rs_account_lose(&second);
    }
    rs_account_begin(&device, NULL);
    rs_account_begin(&first, &device);
    rs_account_begin(&second, &device);
    device.limit_bytes = 16 * MIB;
    return 0;
}

static bool take_footprint(struct rs_account *account, size_t size_bytes)
{
    return rs_account_take(account, size_bytes, rs_footprint_most(size_bytes), RS_MEMORY_DEVICE);
}

static void assert_charged(size_t device_bytes, size_t first_bytes, size_t second_bytes)
{
    assert_int_equal(device.charged_bytes, device_bytes);
    assert_int_equal(first.charged_bytes, first_bytes);
    assert_int_equal(second.charged_bytes, second_bytes);
}

static void give_footprint(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                           enum rs_memory memory)
{
    rs_account_give(account, size_bytes, rs_footprint_leave(account, address, size_bytes, memory),
                    memory);
}

TEST_WITH(setup, NULL, a_refusal_changes_nothing)
{
    struct rs_account before;

    assert_true(rs_account_take(&first, 10 * MIB, 10 * MIB, RS_MEMORY_DEVICE));
    rs_account_taken(&first, 10 * MIB, 10 * MIB, RS_MEMORY_DEVICE);
    before = device;
    assert_false(rs_account_take(&second, 7 * MIB, 7 * MIB, RS_MEMORY_DEVICE));
    assert_false(rs_account_take(&second, SIZE_MAX, SIZE_MAX, RS_MEMORY_MANAGED));
    assert_int_equal(device.refusals, 2);
    before.refusals = 2;
    assert_memory_equal(&before, &device, sizeof(before));
    assert_charged(10 * MIB, 10 * MIB, 0);
    assert_true(rs_account_take(&second, 6 * MIB, 6 * MIB, RS_MEMORY_MANAGED));
    rs_account_taken(&second, 6 * MIB, 6 * MIB, RS_MEMORY_MANAGED);
    assert_false(rs_account_take(&second, 1, 1, RS_MEMORY_DEVICE));
    assert_true(rs_account_take(&second, 100 * MIB, 100 * MIB, RS_MEMORY_HOST)); /* of no device */
    rs_account_give(&first, 10 * MIB, 10 * MIB, RS_MEMORY_DEVICE);
    assert_charged(6 * MIB, 0, 6 * MIB);
    assert_int_equal(device.peak_charged_bytes, 16 * MIB);
}

/* A program that probes for memory asks for more than there is: that was never its peak. */
TEST_WITH(setup, NULL, a_peak_rises_when_the_driver_has_answered)
{
    device.limit_bytes = 0;
    assert_true(rs_account_take(&first, 4 * MIB, 4 * MIB, RS_MEMORY_DEVICE));
    rs_account_taken(&first, 4 * MIB, 4 * MIB, RS_MEMORY_DEVICE);
    assert_true(rs_account_take(&first, 100 * MIB, 100 * MIB, RS_MEMORY_DEVICE));
    /* Meanwhile another is answered. */
    assert_true(rs_account_take(&second, 2 * MIB, 2 * MIB, RS_MEMORY_DEVICE));
    rs_account_taken(&second, 2 * MIB, 2 * MIB, RS_MEMORY_DEVICE);
    rs_account_untake(&first, 100 * MIB, 100 * MIB, RS_MEMORY_DEVICE);
    assert_int_equal(device.peak_charged_bytes, 6 * MIB);
    assert_int_equal(device.asked_bytes, 0);
}

static void *ask_in_vain(void *account)
{
    assert_true(rs_account_take(account, 10 * MIB, 10 * MIB, RS_MEMORY_DEVICE));
    rs_account_untake(account, 10 * MIB, 10 * MIB, RS_MEMORY_DEVICE);
    return NULL;
}

/* Whoever was refused for what another had asked for in vain must be able to see it. */
TEST(where_no_account_is_kept_there_is_no_limit)
{
    assert_int_equal(rs_account_most(NULL), SIZE_MAX);
    assert_int_equal(rs_account_limit(NULL), SIZE_MAX);
}

TEST_WITH(setup, NULL, releases_tell_what_other_threads_gave_back)
{
    uint64_t before = rs_account_releases(&first);
    pthread_t thread;

    (void)ask_in_vain(&first);
    assert_int_equal(rs_account_releases(&first), before);
    assert_int_equal(pthread_create(&thread, NULL, ask_in_vain, &first), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_not_equal(rs_account_releases(&second), before);
}

TEST_WITH(setup, NULL, a_lost_context_gives_its_part_back)
{
    assert_true(take_footprint(&first, 3 * MIB));
    assert_true(take_footprint(&first, 100));
    assert_true(rs_footprint_settle(&first, 64 * MIB, 100, RS_MEMORY_DEVICE, &charged_bytes));
    assert_true(take_footprint(&second, 100));
    assert_true(
        rs_footprint_settle(&second, 64 * MIB + 512, 100, RS_MEMORY_DEVICE, &charged_bytes));
    assert_charged(8 * MIB, 6 * MIB, 2 * MIB);
    rs_account_lose(&first);
    assert_charged(2 * MIB, 0, 2 * MIB);
    assert_int_equal(device.held_bytes[RS_MEMORY_DEVICE], 100);
    /* The next context at the same place begins anew. */
    assert_true(take_footprint(&first, 100));
    assert_true(rs_footprint_settle(&first, 64 * MIB, 100, RS_MEMORY_DEVICE, &charged_bytes));
    assert_charged(4 * MIB, 2 * MIB, 2 * MIB);
    give_footprint(&first, 64 * MIB, 100, RS_MEMORY_DEVICE);
    give_footprint(&second, 64 * MIB + 512, 100, RS_MEMORY_DEVICE);
    assert_charged(0, 0, 0);
}

/* A thousand small ones in one block of the driver's are that block; scattered ones one each. */
TEST_WITH(setup, NULL, small_allocations_share_blocks)
{
    for (size_t i = 0; i < 1000; i++) {
        assert_true(take_footprint(&first, 1));
        assert_true(
            rs_footprint_settle(&first, 32 * MIB + 512 * i, 1, RS_MEMORY_DEVICE, &charged_bytes));
        assert_charged(2 * MIB, 2 * MIB, 0);
    }
    for (size_t i = 0; i < 7; i++) {
        assert_true(take_footprint(&first, MIB));
        assert_true(
            rs_footprint_settle(&first, (34 + 2 * i) * MIB, MIB, RS_MEMORY_DEVICE, &charged_bytes));
    }
    assert_charged(16 * MIB, 16 * MIB, 0);
    assert_false(take_footprint(&first, 1)); /* it may need a block */
    for (size_t i = 0; i < 999; i++)
        give_footprint(&first, 32 * MIB + 512 * i, 1, RS_MEMORY_DEVICE);
    assert_charged(16 * MIB, 16 * MIB, 0);
    give_footprint(&first, 32 * MIB + 512 * 999, 1, RS_MEMORY_DEVICE);
    assert_charged(14 * MIB, 14 * MIB, 0);
    for (size_t i = 0; i < 7; i++)
        give_footprint(&first, (34 + 2 * i) * MIB, MIB, RS_MEMORY_DEVICE);
    assert_charged(0, 0, 0);
    assert_int_equal(device.held_bytes[RS_MEMORY_DEVICE], 0);
}

TEST_WITH(setup, NULL, a_small_allocation_may_lie_in_two_blocks)
{
    assert_true(take_footprint(&first, MIB));
    assert_true(
        rs_footprint_settle(&first, 32 * MIB + 512 - MIB, MIB, RS_MEMORY_DEVICE, &charged_bytes));
    assert_charged(4 * MIB, 4 * MIB, 0);
    give_footprint(&first, 32 * MIB + 512 - MIB, MIB, RS_MEMORY_DEVICE);
    assert_charged(0, 0, 0);
}

TEST_WITH(setup, NULL, large_allocations_are_whole_blocks)
{
    assert_int_equal(rs_footprint_most(1), 2 * MIB);
    assert_int_equal(rs_footprint_most(2 * MIB + 1), 4 * MIB);
    assert_int_equal(rs_footprint_most(SIZE_MAX), SIZE_MAX);
    assert_true(take_footprint(&first, 3 * MIB));
    assert_charged(4 * MIB, 4 * MIB, 0);
    rs_account_untake(&first, 3 * MIB, 4 * MIB, RS_MEMORY_DEVICE);
    assert_charged(0, 0, 0);
}

/* A pool of the driver's: charged for a growth that may be, then for what it is. */
TEST_WITH(setup, NULL, what_the_driver_holds_is_followed)
{
    assert_true(rs_account_take(&device, 0, 6 * MIB, RS_MEMORY_DEVICE));
    rs_account_settle(&device, (struct rs_amount){0, 6 * MIB, 6 * MIB},
                      (struct rs_amount){10 * MIB, 10 * MIB, 0}, RS_MEMORY_DEVICE);
    assert_int_equal(device.charged_bytes, 10 * MIB);
    assert_int_equal(device.held_bytes[RS_MEMORY_DEVICE], 10 * MIB);
    assert_true(rs_account_has_room(&first, 6 * MIB));
    assert_false(rs_account_has_room(&first, 6 * MIB + 1));
    rs_account_give(&device, 10 * MIB, 10 * MIB, RS_MEMORY_DEVICE);
    assert_int_equal(device.charged_bytes, 0);
    assert_int_equal(device.held_bytes[RS_MEMORY_DEVICE], 0);
    assert_int_equal(device.peak_charged_bytes, 10 * MIB);
}

static void *take_and_give(void *account)
{
    size_t most = 0;

    for (int i = 0; i < 20000; i++) {
        if (!rs_account_take(account, 3 * MIB, 3 * MIB, RS_MEMORY_DEVICE))
            continue;
        rs_account_taken(account, 3 * MIB, 3 * MIB, RS_MEMORY_DEVICE);
        most = device.charged_bytes > most ? device.charged_bytes : most;
        rs_account_give(account, 3 * MIB, 3 * MIB, RS_MEMORY_DEVICE);
    }
    return (void *)most;
}

TEST_WITH(setup, NULL, threads_never_pass_the_limit)
{
    pthread_t threads[8];

    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, i % 2 ? &first : &second),
                         0);
    for (int i = 0; i < 8; i++) {
        void *most;
        pthread_join(threads[i], &most);
        assert_true((size_t)most <= 16 * MIB);
    }
    assert_true(device.peak_charged_bytes <= 16 * MIB);
    assert_charged(0, 0, 0);
}

/* Five of 368 KiB are in a block of 2 MiB, and never six. */
TEST(small_arrays_share_blocks)
{
    enum { COUNT = 11, BYTES = 368 << 10 };
    static struct rs_account account;
    struct rs_footprint_share shares[COUNT], tiny;

    rs_account_begin(&account, NULL);
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(rs_footprint_pack(&account, BYTES, &shares[i]));
        assert_int_equal(account.charged_bytes, (i / 5 + 1) * 2 * MIB);
    }
    assert_int_equal(rs_footprint_unpack(&account, BYTES, &shares[0], false), 0); /* a hole, ... */
    assert_true(rs_footprint_pack(&account, 4096, &tiny));
    assert_int_equal(tiny.charged_bytes, 0); /* ... which a smaller one lies in */
    for (size_t i = 1; i < COUNT; i++)
        (void)rs_footprint_unpack(&account, BYTES, &shares[i], false);
    assert_int_equal(account.charged_bytes, 2 * MIB); /* one is live */
    (void)rs_footprint_unpack(&account, 4096, &tiny, false);
    assert_int_equal(account.charged_bytes, 0);
    assert_int_equal(account.held_bytes[RS_MEMORY_DEVICE], 0);
}

/* A program may ask for one, and it is charged before the driver refuses it. */
TEST(an_array_without_bytes_is_charged_and_given_back)
{
    static struct rs_account account;
    struct rs_footprint_share share;

    rs_account_begin(&account, NULL);
    assert_true(rs_footprint_pack(&account, 0, &share));
    (void)rs_footprint_unpack(&account, 0, &share, false);
    assert_int_equal(account.charged_bytes, 0);
}

TEST(a_refused_array_leaves_others_their_block)
{
    static struct rs_account account;
    struct rs_footprint_share one, other;

    rs_account_begin(&account, NULL);
    account.limit_bytes = 2 * MIB;
    assert_true(rs_footprint_pack(&account, 64 << 10, &one));
    assert_true(rs_footprint_pack(&account, 64 << 10, &other));
    assert_int_equal(rs_footprint_unpack(&account, 64 << 10, &one, true), 0);
    assert_int_equal(account.charged_bytes, 2 * MIB); /* the second is there */
    assert_false(rs_footprint_pack(&account, 2 * MIB, &one));
    rs_account_taken(&account, 64 << 10, other.charged_bytes, RS_MEMORY_DEVICE);
    (void)rs_footprint_unpack(&account, 64 << 10, &other, false);
    assert_int_equal(account.charged_bytes, 0);
    assert_int_equal(account.asked_bytes, 0);
    assert_true(rs_footprint_pack(&account, 2 * MIB, &one));
}

/* ---- an account in a job ---- */

static struct rs_job_limit job;
static struct rs_job_share share;

/* False on a kernel without robust mutexes. */
static bool is_in_a_job(void)
{
    (void)setup(NULL);
    memset(&job, 0, sizeof(job));
    if (rs_job_limit_init(&job, (struct rs_size){16 * MIB, RS_SIZE_BYTES}) != 0)
        return false;
    share = (struct rs_job_share){
        .job = &job, .member = rs_job_limit_join(&job), .limit_bytes = 16 * MIB};
    rs_job_share_enter(&share);
    device.job = &share;
    return true;
}

static void assert_nothing_is_counted(void)
{
    assert_charged(0, 0, 0);
    assert_int_equal(share.entry->taken_bytes, 0);
}

TEST(what_the_job_refuses_is_not_charged)
{
    if (!is_in_a_job())
        return;
    device.limit_bytes = 0;
    assert_false(rs_account_take(&first, 17 * MIB, 17 * MIB, RS_MEMORY_DEVICE));
    assert_nothing_is_counted();
    assert_true(rs_account_take(&first, 4 * MIB, 4 * MIB, RS_MEMORY_DEVICE));
    assert_int_equal(device.refusals, 1);
    assert_int_equal(device.peak_charged_bytes, 0);
    assert_int_equal(share.entry->taken_bytes, 4 * MIB);
    rs_account_untake(&first, 4 * MIB, 4 * MIB, RS_MEMORY_DEVICE);
    assert_nothing_is_counted();
}

TEST(what_the_own_limit_refuses_was_never_the_job_s)
{
    uint64_t releases;

    if (!is_in_a_job())
        return;
    releases = rs_job_share_releases(&share);
    device.limit_bytes = 2 * MIB;
    assert_false(rs_account_take(&first, 4 * MIB, 4 * MIB, RS_MEMORY_DEVICE));
    assert_nothing_is_counted();
    assert_int_equal(rs_job_share_releases(&share), releases);
    assert_int_equal(job.turns, 2); /* to join and to enter */
    assert_int_equal(device.refusals, 1);
}
