/* SPDX-License-Identifier: Apache-2.0 */
/* Records that were recycled for another block after a look-up had found them.  What takes several
 * threads otherwise is made here by hand: an entry of the map whose record has a block elsewhere.
 */
#include "unit.h"

#include "context/block.h"
#include "context/block_counts.h"
#include "context/context.h"
#include "context/limit.h"
#include "host_memory.h"

#include <stdatomic.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096, WIDE_BYTES = 1 << 20, OLD_BYTES = 4096, OLD_OFFSET = 8192 };
static const CUdeviceptr wide = 0x700000000000, elsewhere = 0x700000800000;

static struct rs_context context;
static struct rs_stack stack = {.context = &context, .kind = RS_KIND_DEVICE};

static int set_up(void **state)
{
    (void)state;
    stack.counter = rs_block_counter(RS_KIND_DEVICE, 0);
    atomic_store(&context.alive, RS_CONTEXT_SERVES);
    return 0;
}

GROUP_FIXTURE(set_up, NULL);

/* The caller gives its memory back then.  This test is the first one: it makes the map. */
TEST(a_block_without_host_memory_for_it_is_not_entered)
{
    const struct rs_allocation block = {wide, WIDE_BYTES, NULL, NULL};
    struct rs_taken_block taken;
    uint64_t refused = 0;
    bool is_entered = false;

    for (long left = 0; !is_entered; left++) {
        host_left = left;
        is_entered = rs_block_enter(&stack, &block, 0);
        host_left = -1;
        refused += !is_entered;
        assert_true(is_entered == !!rs_block_beginning_at(wide));
        assert_int_equal(rs_limit_refused(0), refused);
    }
    assert_true(refused > 1); /* for want of a record, and for want of a map */
    assert_true(rs_block_claim(wide, 1u << RS_KIND_DEVICE, &taken));
}

/* A free that writes to the record makes the free of the record's new block fail in another thread.
 */
TEST(a_free_does_not_write_to_a_record_of_another_block)
{
    struct rs_block_record *record =
        mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct rs_taken_block taken;

    assert_ptr_not_equal(record, MAP_FAILED);
    atomic_store(&record->address, elsewhere);
    atomic_store(&record->stack, &stack);
    atomic_store(&record->state, RS_BLOCK_LIVE);
    assert_int_equal(mprotect(record, PAGE_BYTES, PROT_READ), 0);
    assert_false(rs_block_claim_found(record, wide, 1 << RS_KIND_DEVICE, &taken));
    munmap(record, PAGE_BYTES);
}

static void assert_found(CUdeviceptr address)
{
    struct rs_block_view view;

    assert_true(rs_block_find(address, &view));
    assert_int_equal(view.address, wide);
    assert_int_equal(view.size_bytes, WIDE_BYTES);
}

/* The entry is one of a context that has ended, and its record has the block elsewhere by now. */
TEST(a_look_up_steps_over_the_entry_of_a_record_of_another_block)
{
    const struct rs_allocation blocks[] = {{wide, WIDE_BYTES, NULL, NULL},
                                           {elsewhere, 512, NULL, NULL}};
    struct rs_block_record *record;

    assert_true(rs_block_enter(&stack, &blocks[0], 0));
    assert_true(rs_block_enter(&stack, &blocks[1], 0));
    record = rs_block_beginning_at(elsewhere);
    assert_non_null(record);
    assert_true(
        rs_address_map_insert(atomic_load(&rs_blocks), wide + OLD_OFFSET, OLD_BYTES, record));
    assert_found(wide + OLD_OFFSET);
    assert_found(wide + OLD_OFFSET + OLD_BYTES);
    assert_null(rs_block_beginning_at(wide + OLD_OFFSET));
}

/* Nobody would forget it. */
TEST(a_block_of_a_context_that_has_ended_is_not_entered)
{
    const struct rs_allocation block = {elsewhere + WIDE_BYTES, 512, NULL, NULL};
    size_t live = rs_block_counts(RS_KIND_DEVICE, 0).live_blocks;

    atomic_store(&context.alive, RS_CONTEXT_ENDS);
    atomic_store(&context.ending, RS_ENDING_OVER);
    assert_false(rs_block_enter(&stack, &block, 0));
    assert_null(rs_block_beginning_at(block.address));
    assert_int_equal(rs_block_counts(RS_KIND_DEVICE, 0).live_blocks, live);
}
