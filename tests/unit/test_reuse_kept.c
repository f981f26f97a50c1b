/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: ready blocks of small sizes are kept with their holders and come back without upstream. */
#include "reuse_stack.h"

#include <string.h>

enum { KEPT = 400, KEPT_BLOCK = 4096 };

static int holders[KEPT]; /* how often each was forgotten */

static void forget_one(const struct rs_environment *where, void *holder);

static const struct rs_environment place_with_holders = {
    .context = CTX,
    .sentinel = &sentinel,
    .account = &account,
    .total_bytes = (size_t)80 << 30,
    .first_on_device = true,
    .frees_are_ready = true,
    .forget_holder = forget_one,
};

static void forget_one(const struct rs_environment *where, void *holder)
{
    assert_ptr_equal(where, &place_with_holders);
    (*(int *)holder)++;
}

/* KEPT blocks were freed with their holders, and all but the last epoch of them are clean and kept.
 */
static struct stack start_kept(size_t capacity_bytes)
{
    struct rs_allocation blocks[KEPT];
    struct stack stack;

    start_device(true);
    memset(holders, 0, sizeof(holders));
    stack = stack_at(&place_with_holders, &rs_mr_descriptor_pool, capacity_bytes,
                     OPTIONS("initial_size=0"), "free=deferred");
    assert_true(stack.mr->keeps_holders);
    for (unsigned i = 0; i < KEPT; i++) {
        blocks[i] = take(&stack, KEPT_BLOCK);
        assert_null(blocks[i].holder);
    }
    for (unsigned i = 0; i < KEPT; i++) {
        blocks[i].holder = &holders[i];
        give(&stack, &blocks[i]);
        complete_all();
    }
    assert_true(counter(&stack, "kept") > 0);
    return stack;
}

static unsigned forgotten(void)
{
    unsigned sum = 0;

    for (unsigned i = 0; i < KEPT; i++) {
        assert_true(holders[i] <= 1);
        sum += (unsigned)holders[i];
    }
    return sum;
}

TEST(a_kept_block_comes_back_with_its_holder)
{
    struct stack stack = start_kept(PLENTY);
    unsigned gone = forgotten();
    size_t kept = counter(&stack, "kept");
    struct rs_allocation again = take(&stack, KEPT_BLOCK), other;

    assert_non_null(again.holder);
    assert_int_equal(*(int *)again.holder, 0);
    assert_int_equal(counter(&stack, "kept"), kept - KEPT_BLOCK);
    other = take(&stack, KEPT_BLOCK / 2); /* only just that size */
    assert_null(other.holder);
    assert_int_equal(counter(&stack, "kept"), kept - KEPT_BLOCK);
    assert_int_equal(forgotten(), gone);
    give(&stack, &again);
    give(&stack, &other);
    complete_all();
    end(&stack);
    assert_int_equal(forgotten(), KEPT);
}

/* What is kept goes upstream before upstream is asked for more, and no block goes there with a
 * holder that still knows it. */
TEST(kept_blocks_go_upstream_on_the_slow_path)
{
    struct stack stack = start_kept(2 * MIB);
    struct rs_allocation large = take(&stack, 2 * MIB);

    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(forgotten(), KEPT);
    assert_null(large.holder);
    give(&stack, &large);
    complete_all();
    end(&stack);
}

/* A large request that a freed block serves needs none of the small ones. */
TEST(small_blocks_stay_kept_while_a_large_request_is_served_by_what_was_freed)
{
    struct stack stack = start_kept(PLENTY);
    struct rs_allocation large = take(&stack, 8 * MIB);
    size_t kept = counter(&stack, "kept"), sealed = counter(&stack, "epochs_sealed");
    CUdeviceptr address = large.address;

    give(&stack, &large);
    complete_all();
    large = take(&stack, 8 * MIB);
    assert_true(large.address == address);
    assert_true(counter(&stack, "epochs_sealed") > sealed); /* by the slow path */
    assert_int_equal(counter(&stack, "kept"), kept);
    give(&stack, &large);
    complete_all();
    end(&stack);
}

/* More than a shard may keep of them. */
TEST(large_blocks_drive_out_no_small_ones)
{
    enum { LARGE = 24 };
    struct stack stack = start(PLENTY, "initial_size=1GiB");
    struct rs_allocation small[SEAL_COUNT], large[LARGE];
    size_t large_bytes;

    for (unsigned i = 0; i < SEAL_COUNT; i++)
        small[i] = take(&stack, KEPT_BLOCK);
    for (unsigned i = 0; i < SEAL_COUNT; i++)
        give(&stack, &small[i]);
    complete_all();
    for (unsigned round = 0; round < 4; round++) {
        for (unsigned i = 0; i < LARGE; i++)
            large[i] = take(&stack, 8 * MIB);
        for (unsigned i = 0; i < LARGE; i++) {
            give(&stack, &large[i]);
            complete_all();
        }
    }
    large_bytes = counter(&stack, "kept") - SEAL_COUNT * KEPT_BLOCK;
    assert_in_range(large_bytes, 8 * MIB, 2 * 1024 * MIB / 16); /* half of it not sorted yet */
    assert_int_equal(large_bytes % (8 * MIB), 0);
    end(&stack);
}

TEST(kept_blocks_go_upstream_on_trim)
{
    struct stack stack = start_kept(PLENTY);

    assert_true(rs_mr_trim(stack.mr, 0) > 0);
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(rs_mr_idle_bytes(stack.mr), 0);
    assert_int_equal(stack.leaf->live_bytes, 0);
    assert_int_equal(forgotten(), KEPT);
    end(&stack);
}

/* Uses blocks of many sizes, one size after the other.  The most that was kept. */
static size_t most_kept(struct stack *stack)
{
    enum { SIZES = 40 };
    struct rs_allocation blocks[8];
    size_t most = 0;

    for (unsigned size = 1; size <= SIZES; size++) {
        for (unsigned round = 0; round < 60; round++) {
            for (unsigned i = 0; i < RS_ARRAY_LENGTH(blocks); i++)
                blocks[i] = take(stack, size * (16 << 10));
            for (unsigned i = 0; i < RS_ARRAY_LENGTH(blocks); i++) {
                give(stack, &blocks[i]);
                complete_all();
            }
            most = rs_max(most, counter(stack, "kept"));
        }
    }
    return most;
}

/* The share of what is held that may be kept; as much again may wait to be sorted. */
TEST(no_more_is_kept_than_a_share)
{
    struct stack stack = start(PLENTY, "initial_size=256MiB");
    size_t kept_bytes = most_kept(&stack);
    struct rs_allocation live;

    assert_in_range(kept_bytes, 2 * 256 * MIB / 64 + 1, 2 * 256 * MIB / 16); /* most is idle */
    end(&stack);

    stack = start(PLENTY, "initial_size=256MiB");
    live = take(&stack, 240 * MIB);
    assert_in_range(most_kept(&stack), MIB, 2 * 256 * MIB / 64);
    give(&stack, &live);
    end(&stack);
}

/* By the allocations, a block each; nothing is lost or found twice. */
TEST(what_has_come_back_is_sorted_bit_by_bit)
{
    enum { BACK = 2 * SEAL_COUNT };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    static struct rs_allocation blocks[BACK + SEAL_COUNT];
    size_t free_blocks;

    for (unsigned i = 0; i < BACK + SEAL_COUNT; i++)
        blocks[i] = take(&stack, UNIT_BYTES);
    for (unsigned i = 0; i < BACK + SEAL_COUNT; i++) {
        give(&stack, &blocks[i]);
        complete_all();
    }
    assert_int_equal(counter(&stack, "kept"), BACK * UNIT_BYTES);
    free_blocks = rs_mr_free_blocks(stack.mr);
    for (unsigned i = 0; i < BACK; i++) {
        blocks[i] = take(&stack, UNIT_BYTES);
        assert_int_equal(counter(&stack, "kept"), (BACK - 1 - i) * UNIT_BYTES);
        assert_int_equal(rs_mr_free_blocks(stack.mr), free_blocks - 1 - i);
        for (unsigned j = 0; j < i; j++)
            assert_true(blocks[j].address != blocks[i].address);
    }
    for (unsigned i = 0; i < BACK; i++)
        give(&stack, &blocks[i]);
    complete_all();
    end(&stack);
}

/* Its frees go upstream at once. */
TEST(free_wait_keeps_nothing)
{
    struct rs_allocation a;
    struct stack stack;

    start_device(true);
    stack = stack_at(&place_with_holders, &rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=0"),
                     "free=wait");
    assert_false(stack.mr->keeps_holders);
    a = take(&stack, KEPT_BLOCK);
    give(&stack, &a);
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}
