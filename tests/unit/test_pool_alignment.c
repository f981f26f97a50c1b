/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of a pool are aligned, whatever its upstream returns. */
#include "pool_stack.h"

/* For GPUDirect and dma-buf pages, without wasting what lies between. */
TEST(large_blocks_are_aligned_to_64_kib)
{
    struct stack stack = make_pool(64 * MIB, OPTIONS("initial_size=16MiB"));
    struct rs_allocation small = take(&stack, 1000), large[3], between;

    for (size_t i = 0; i < 3; i++) {
        large[i] = take(&stack, MIB + 512 * i);
        assert_int_equal((large[i].address - stack.leaf->live[0].address) % (64 * KIB), 0);
    }
    assert_int_equal(large[0].address - small.address, 64 * KIB);
    between = take(&stack, 60 * KIB); /* in front of the first large one */
    assert_int_equal(between.address - small.address, 1024);
    assert_true(rs_mr_check(stack.mr));
    give(&stack, &between);
    give(&stack, &small);
    for (size_t i = 0; i < 3; i++)
        give(&stack, &large[i]);
    assert_int_equal(state_of(&stack).largest_free_bytes, 16 * MIB);
    /* All of it in one block, and what does not fit aligned is served all the same. */
    small = take(&stack, 512);
    large[0] = take(&stack, 16 * MIB - 512);
    assert_int_equal(stack.leaf->live_count, 2);
    give(&stack, &small);
    give(&stack, &large[0]);
    end_stack(&stack);
}

static bool share_a_unit(const struct rs_allocation *a, const struct rs_allocation *b, size_t unit)
{
    CUdeviceptr a_first = a->address / unit, a_last = (a->address + a->size_bytes - 1) / unit;
    CUdeviceptr b_first = b->address / unit, b_last = (b->address + b->size_bytes - 1) / unit;

    return a_first <= b_last && b_first <= a_last;
}

/* The fake leaf aligns to 512 bytes only, so its chunks begin anywhere. */
TEST(no_two_blocks_share_an_aligned_unit)
{
    enum { BLOCKS = 64, ROUNDS = 1000 };
    static const size_t units[] = {512, 4 * KIB, 64 * KIB, 2 * MIB};
    static const char *const options[] = {"alignment=512", "alignment=4KiB", "alignment=64KiB",
                                          "alignment=2MiB"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(units); i++) {
        struct stack stack = make_pool(PLENTY, OPTIONS(options[i], "initial_size=3MiB"));
        struct rs_allocation live[BLOCKS];
        unsigned count = 0;
        uint64_t seed = 11 + i;

        for (unsigned round = 0; round < ROUNDS; round++) {
            unsigned at = (unsigned)(test_random(&seed) % BLOCKS);
            size_t limit = test_random(&seed) % 10 ? 200 * KIB : 5 * MIB;
            if (at < count) {
                give(&stack, &live[at]);
                live[at] = live[--count];
                continue;
            }
            live[count] = take(&stack, 1 + test_random(&seed) % limit);
            assert_int_equal(live[count].address % units[i], 0);
            assert_true(fake_leaf_owns(stack.leaf, live[count].address, live[count].size_bytes));
            for (unsigned j = 0; j < count; j++)
                assert_false(share_a_unit(&live[count], &live[j], units[i]));
            count++;
        }
        end_stack(&stack);
    }
}

/* The upper end, from which small requests are cut, has no aligned address for this one. */
TEST(a_small_request_may_take_the_head_of_the_last_block)
{
    enum {
        LARGE = 34,
        LARGE_BYTES = 30 * MIB
    }; /* 5.5 MiB are left: a small request is below 5.3 */
    struct stack stack = make_pool(PLENTY, OPTIONS("alignment=2MiB", "initial_size=1050112KiB"));
    struct rs_allocation large[LARGE], small;

    for (size_t i = 0; i < LARGE; i++)
        large[i] = take(&stack, LARGE_BYTES);
    small = take(&stack, 4 * MIB);
    assert_int_equal(stack.leaf->live_count, 1);
    assert_int_equal(small.address % (2 * MIB), 0);
    give(&stack, &small);
    for (size_t i = 0; i < LARGE; i++)
        give(&stack, &large[i]);
    end_stack(&stack);
}

/* A chunk of just the request would not hold it; the pool learns that. */
TEST(a_misaligned_upstream_is_asked_for_more)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("alignment=64KiB"));
    struct rs_allocation block;

    stack.leaf->next_address += 512;
    block = take(&stack, 4 * MIB);
    assert_int_equal(block.address % (64 * KIB), 0);
    block = take(&stack, 8 * MIB);
    assert_int_equal(block.address % (64 * KIB), 0);
    assert_int_equal(stack.leaf->allocations, 3);
    assert_int_equal(stack.leaf->live_count, 2); /* what was of no use went back */
    end_stack(&stack);
}

TEST(the_unaligned_beginning_of_a_chunk_is_not_used)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("alignment=64KiB", "maximum_size=256KiB"));
    struct rs_allocation block;

    stack.leaf->next_address += 512;
    for (unsigned i = 0; i < 3; i++)
        block = take(&stack, 60 * KIB);
    refuse(&stack, 513);
    block = take(&stack, 512); /* what the chunk's end has */
    assert_int_equal(block.address % (64 * KIB), 0);
    refuse(&stack, 1);
    end_stack(&stack);
}

TEST(a_chunk_without_an_aligned_byte_serves_nobody)
{
    struct stack stack = make_pool(PLENTY, OPTIONS("alignment=64KiB", "maximum_size=1024"));

    stack.leaf->next_address += 512;
    refuse(&stack, 1);
    refuse(&stack, 1024);
    end_stack(&stack);
}

TEST(alignment_is_a_power_of_two_up_to_2_mib)
{
    static const struct {
        const char *option;
        bool valid;
    } cases[] = {
        {"alignment=512", true},    {"alignment=64KiB", true}, {"alignment=2MiB", true},
        {"alignment=256", false},   {"alignment=4MiB", false}, {"alignment=1000", false},
        {"alignment=96KiB", false}, {"alignment=50%", false},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char line[300];
        bool valid = options_are_valid(&rs_mr_descriptor_pool, &fake_environment,
                                       OPTIONS(cases[i].option), line, sizeof(line));
        if (valid != cases[i].valid)
            fail_msg("%s: %s", cases[i].option, line);
    }
}
