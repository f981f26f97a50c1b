/* SPDX-License-Identifier: Apache-2.0 */
/* Free memory of `virtual` is never too scattered for a large block, and all of the device can be
 * live. */
#include "virtual_stack.h"

TEST(ten_gibibytes_are_cut_and_merged_at_will)
{
    struct rs_mr *mr = make(10 * GIB, NULL);
    struct rs_allocation blocks[BLOCKS_MAX];
    uint64_t creations;

    take_many(mr, blocks, 10, GIB, NULL);
    creations = fake_vmm.creations;
    give_many(mr, blocks, 10);
    take_many(mr, blocks, 20, GIB / 2, NULL);
    give_many(mr, blocks, 20);
    take_many(mr, blocks, 5, 2 * GIB, NULL);
    refuse(mr, 1);
    give_many(mr, blocks, 5);
    assert_int_equal(fake_vmm.creations, creations);
    assert_int_equal(fake_vmm.unmappings, 0); /* all of it lay side by side */
    end(mr);
}

/* A live granule lies between any two blocks. */
TEST(scattered_gibibytes_are_moved_together)
{
    struct rs_mr *mr = make(10 * GIB + 10 * 32 * MIB, NULL);
    struct rs_allocation blocks[BLOCKS_MAX], walls[BLOCKS_MAX], one;
    uint64_t creations;

    take_many(mr, blocks, 10, GIB, walls);
    creations = fake_vmm.creations;
    give_many(mr, blocks, 10);
    take_many(mr, blocks, 20, GIB / 2, NULL);
    give_many(mr, blocks, 20);
    take_many(mr, blocks, 5, 2 * GIB, NULL);
    give_many(mr, blocks, 5);
    one = take(mr, 9 * GIB);
    give(mr, &one);
    assert_int_equal(fake_vmm.creations, creations);
    assert_true(counter(mr, "moved") > 9 * GIB);
    give_many(mr, walls, 10);
    end(mr);
}

TEST(held_memory_is_moved_without_new_memory_or_not_at_all)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation first = take(mr, 64 * MIB), wall = take(mr, 512);
    struct rs_allocation second = take(mr, 64 * MIB), wall2 = take(mr, 512), moved;
    uint64_t creations = fake_vmm.creations;

    give(mr, &first);
    give(mr, &second);
    assert_int_equal(rs_mr_allocate_with(mr, 200 * MIB, NULL, RS_EFFORT_HELD, &moved),
                     CUDA_ERROR_NOT_READY);
    assert_good(mr);
    assert_int_equal(rs_mr_allocate_with(mr, 100 * MIB, NULL, RS_EFFORT_HELD, &moved),
                     CUDA_SUCCESS);
    assert_true(fake_vmm_is_usable(moved.address, 100 * MIB));
    assert_good(mr);
    assert_int_equal(fake_vmm.creations, creations);
    give(mr, &moved);
    give(mr, &wall);
    give(mr, &wall2);
    end(mr);
}

TEST(growth_continues_the_free_end)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation first = take(mr, 16 * MIB), second = take(mr, 40 * MIB);

    assert_int_equal(second.address, first.address + 16 * MIB);
    assert_int_equal(fake_vmm.created_bytes, 64 * MIB);
    assert_int_equal(fake_vmm.unmappings, 0);
    give(mr, &first);
    give(mr, &second);
    end(mr);
}

TEST(what_is_missing_is_created_and_the_rest_moved)
{
    struct rs_mr *mr = make(GIB, OPTIONS("granularity=2MiB"));
    struct rs_allocation first = take(mr, 6 * MIB), wall = take(mr, 2 * MIB), large;

    give(mr, &first);
    large = take(mr, 20 * MIB);
    assert_int_equal(fake_vmm.created_bytes, 22 * MIB);
    assert_int_equal(counter(mr, "moved"), 6 * MIB);
    give(mr, &large);
    give(mr, &wall);
    end(mr);
}

TEST(scattered_addresses_are_no_shortage_either)
{
    struct rs_mr *mr = NULL;
    struct rs_allocation blocks[16], large;

    fake_vmm_install(GIB);
    environment = (struct rs_environment){.total_bytes = 16 * 2 * MIB, .frees_are_ready = true};
    rs_account_begin(&account, NULL);
    environment.account = &account;
    {
        int error;
        mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL,
                              OPTIONS("granularity=2MiB", "reserve=1"), &error);
    }
    for (size_t i = 0; i < 16; i++)
        blocks[i] = take(mr, 2 * MIB);
    for (size_t i = 0; i < 16; i += 2)
        give(mr, &blocks[i]);
    large = take(mr, 16 * MIB);
    assert_int_equal(fake_vmm.reservations, 2);
    assert_int_equal(fake_vmm.created_bytes, 32 * MIB);
    give(mr, &large);
    for (size_t i = 1; i < 16; i += 2)
        give(mr, &blocks[i]);
    end(mr);
}

TEST(large_blocks_are_aligned)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation small = take(mr, 512), large = take(mr, MIB + 512), next = take(mr, 512);

    assert_int_equal(large.address % (64 * KIB), 0);
    give(mr, &large);
    give(mr, &small);
    give(mr, &next);
    end(mr);
}

static size_t rounded_of(size_t size_bytes)
{
    return (size_bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

/* Log-uniform between the two. */
static size_t random_size(uint64_t *seed, unsigned least_bits, unsigned most_bits)
{
    unsigned bits = least_bits + (unsigned)(test_random(seed) % (most_bits - least_bits));

    return ((size_t)1 << bits) + test_random(seed) % ((size_t)1 << bits);
}

/* Blocks come and go while their sizes, each rounded to 2 MiB, stay below what there is: none is
 * refused, whatever lies between them. */
static void use_all_of_it(size_t capacity_bytes, unsigned least_bits, unsigned most_bits,
                          uint64_t seed)
{
    enum { LIVE_MAX = 512, STEPS = 2000 };
    static struct rs_allocation live[LIVE_MAX];
    struct rs_mr *mr = make(capacity_bytes, OPTIONS("granularity=2MiB"));
    size_t count = 0, live_bytes = 0;

    for (unsigned step = 0; step < STEPS; step++) {
        size_t size_bytes = random_size(&seed, least_bits, most_bits);
        while (count == LIVE_MAX || live_bytes + rounded_of(size_bytes) > capacity_bytes) {
            size_t at = test_random(&seed) % count;
            live_bytes -= rounded_of(live[at].size_bytes);
            assert_int_equal(rs_mr_deallocate(mr, &live[at], NULL), CUDA_SUCCESS);
            live[at] = live[--count];
        }
        assert_int_equal(rs_mr_allocate(mr, size_bytes, NULL, &live[count]), CUDA_SUCCESS);
        live_bytes += rounded_of(live[count++].size_bytes);
    }
    assert_true(rs_mr_check(mr));
    while (count > 0)
        assert_int_equal(rs_mr_deallocate(mr, &live[--count], NULL), CUDA_SUCCESS);
    end(mr);
}

TEST(what_is_live_is_all_that_is_taken_of_the_device)
{
    static const unsigned bits[][2] = {{20, 23}, {21, 25}, {12, 26}, {9, 20}, {22, 27}, {24, 27}};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(bits); i++)
        use_all_of_it(512 * MIB, bits[i][0], bits[i][1], 7 + i);
}
