/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: ready blocks of small sizes are kept with their records and come back without upstream. */
#include "reuse_stack.h"

#include "context/block.h"
#include "count_ranges.h"

#include <pthread.h>

enum { KEPT = 400, KEPT_BLOCK = 4096 };

/* The program's side of the blocks: their records are in the map of blocks. */
static struct rs_context context;
static struct rs_stack door = {.context = &context, .kind = RS_KIND_DEVICE};

static struct rs_allocation take_at_door(struct stack *stack)
{
    struct rs_allocation block = take(stack, KEPT_BLOCK);

    assert_true(rs_block_enter(&door, &block, 0));
    return block;
}

static void give_at_door(struct stack *stack, CUdeviceptr address)
{
    struct rs_taken_block taken;

    assert_true(rs_block_claim(address, 1 << RS_KIND_DEVICE, &taken));
    assert_non_null(taken.allocation.block);
    give(stack, &taken.allocation);
}

static size_t in_map(void)
{
    return count_ranges(rs_blocks);
}

/* KEPT blocks were freed, and all but the last epoch of them are clean and kept. */
static struct stack start_kept(size_t capacity_bytes)
{
    struct rs_allocation blocks[KEPT];
    struct stack stack = start(capacity_bytes, "initial_size=0");

    atomic_store(&context.alive, RS_CONTEXT_SERVES);
    door.counter = rs_block_counter(RS_KIND_DEVICE, 0);
    for (unsigned i = 0; i < KEPT; i++) {
        blocks[i] = take(&stack, KEPT_BLOCK);
        assert_int_equal(blocks[i].block->state, RS_BLOCK_HIDDEN);
        assert_true(rs_block_enter(&door, &blocks[i], 0));
    }
    for (unsigned i = 0; i < KEPT; i++) {
        give_at_door(&stack, blocks[i].address);
        complete_all();
    }
    assert_true(counter(&stack, "kept") > 0);
    return stack;
}

TEST(a_kept_block_comes_back_with_its_record)
{
    struct stack stack = start_kept(PLENTY);
    size_t kept = counter(&stack, "kept"), known = in_map();
    struct rs_allocation again = take(&stack, KEPT_BLOCK), other;

    assert_int_equal(again.block->state, RS_BLOCK_TAKEN);
    assert_int_equal(again.block->address, again.address);
    assert_int_equal(counter(&stack, "kept"), kept - KEPT_BLOCK);
    other = take(&stack, KEPT_BLOCK / 2); /* only just that size */
    assert_int_equal(other.block->state, RS_BLOCK_HIDDEN);
    assert_int_equal(counter(&stack, "kept"), kept - KEPT_BLOCK);
    assert_int_equal(in_map(), known);
    give(&stack, &again);
    give(&stack, &other);
    complete_all();
    end(&stack);
    assert_int_equal(in_map(), 0);
}

/* What is kept goes upstream before upstream is asked for more, and no block goes there that is
 * still in the map. */
TEST(kept_blocks_go_upstream_on_the_slow_path)
{
    struct stack stack = start_kept(2 * MIB);
    struct rs_allocation large = take(&stack, 2 * MIB);

    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(in_map(), 0);
    assert_int_equal(large.block->state, RS_BLOCK_HIDDEN);
    give(&stack, &large);
    complete_all();
    end(&stack);
}

/* A resource above `reuse` may cut a kept block: the program's block then has its place in the map.
 */
TEST(a_kept_block_that_is_cut_enters_the_map_anew)
{
    struct stack stack = start_kept(PLENTY);
    struct rs_allocation whole = take(&stack, KEPT_BLOCK), part = {whole.address, 100, NULL, NULL};
    struct rs_taken_block taken;

    assert_true(rs_block_enter(&door, &part, 0));
    assert_true(rs_block_claim(part.address, 1 << RS_KIND_DEVICE, &taken));
    assert_null(taken.allocation.block);
    assert_int_equal(taken.allocation.size_bytes, 100);
    give(&stack, &whole);
    complete_all();
    for (unsigned i = 0; i < KEPT && part.address; i++) {
        struct rs_allocation again = take_at_door(&stack);
        if (again.address == part.address)
            part.address = 0;
        give_at_door(&stack, again.address);
        complete_all();
    }
    assert_int_equal(part.address, 0);
    end(&stack);
}

/* Records go back to the thread that allocates, so a second one that frees makes it take no new
 * ones. */
static void *give_all(void *data)
{
    struct rs_block_record **records = data;

    for (unsigned i = 0; i < KEPT; i++)
        rs_block_record_give(records[i]);
    return NULL;
}

TEST(records_that_another_thread_gives_back_are_used_again)
{
    struct rs_block_record *first[KEPT], *records[KEPT];
    pthread_t other;

    for (unsigned i = 0; i < KEPT; i++)
        first[i] = records[i] = rs_block_record_take();
    assert_int_equal(pthread_create(&other, NULL, give_all, records), 0);
    assert_int_equal(pthread_join(other, NULL), 0);
    for (unsigned i = KEPT; i-- > 0;) {
        records[i] = rs_block_record_take();
        assert_ptr_equal(records[i], first[i]);
    }
    for (unsigned i = 0; i < KEPT; i++)
        rs_block_record_give(records[i]);
}

/* After a context's end its stack goes without a driver call, and the records of its freed blocks
 * are used again. */
TEST(a_stack_that_goes_with_its_context_gives_the_records_back)
{
    struct rs_block_record *record;
    struct stack stack = start_kept(PLENTY);
    struct rs_mr *below = stack.mr->upstream[0];
    size_t live = stack.leaf->live_bytes;
    struct rs_allocation one = take(&stack, 8 * MIB);

    record = one.block;
    give(&stack, &one);
    atomic_store(&context.alive, RS_CONTEXT_ENDS);
    rs_block_forget_all(&context);
    assert_int_equal(in_map(), 0);
    live = stack.leaf->live_bytes;
    stack.mr->ops.destroy(stack.mr, true);
    assert_int_equal(stack.leaf->live_bytes, live);
    for (unsigned i = 0; i <= KEPT && record; i++)
        record = rs_block_record_take() == record ? NULL : record;
    assert_null(record);
    below->ops.destroy(below, true);
    fake_leaf_destroy(stack.leaf);
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
    assert_int_equal(in_map(), 0);
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
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=0"), "free=wait");
    a = take(&stack, KEPT_BLOCK);
    give(&stack, &a);
    assert_int_equal(counter(&stack, "kept"), 0);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}
