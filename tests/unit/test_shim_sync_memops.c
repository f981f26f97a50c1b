/* SPDX-License-Identifier: Apache-2.0 */
/* SYNC_MEMOPS of blocks that share one driver allocation, and the numbers of such blocks. */
#include "unit.h"

#include "context/block.h"
#include "context/block_counts.h"
#include "context/context.h"
#include "driver/driver.h"
#include "introspect/introspect.h"
#include "resource/segment.h"

#include <stdatomic.h>

enum { BLOCKS = 3, BLOCK_BYTES = 1000, SEGMENT_BYTES = 1 << 20 };
static const CUdeviceptr segments[2] = {0x700000000000, 0x700000800000};

static struct rs_mr mr;
static struct rs_context context;
static struct rs_stack stack = {.context = &context, .kind = RS_KIND_DEVICE};
static struct rs_allocation blocks[2][BLOCKS];

/* What the driver holds of each segment. */
static unsigned driver_value[2], driver_calls;
static CUresult driver_result;
static CUdeviceptr set_meanwhile; /* a block that another thread sets during the next call */

static CUresult set(CUdeviceptr address, bool wanted)
{
    return rs_sync_memops_set(address, stack.kind, wanted);
}

static CUresult set_attribute(const void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    CUdeviceptr other = set_meanwhile;

    assert_int_equal(attribute, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
    if (driver_result != CUDA_SUCCESS)
        return driver_result;
    set_meanwhile = 0;
    if (other)
        assert_int_equal(set(other, true), CUDA_SUCCESS);
    driver_calls++;
    driver_value[address - segments[1] < SEGMENT_BYTES] = *(const unsigned *)value;
    return CUDA_SUCCESS;
}

static CUresult get_current(CUcontext *current)
{
    *current = stack.environment.context;
    return CUDA_SUCCESS;
}

static int set_up(void **state)
{
    (void)state;
    rs_driver.cuPointerSetAttribute = set_attribute;
    rs_driver.cuCtxGetCurrent = get_current;
    driver_value[0] = driver_value[1] = driver_calls = 0;
    driver_result = CUDA_SUCCESS;
    set_meanwhile = 0;
    stack.mr = &mr;
    stack.counter = rs_block_counter(RS_KIND_DEVICE, 0);
    atomic_store(&context.alive, true);
    for (int s = 0; s < 2; s++) {
        assert_true(rs_segment_add(&stack.environment, segments[s], SEGMENT_BYTES, false));
        for (int i = 0; i < BLOCKS; i++) {
            blocks[s][i] = (struct rs_allocation){.address = segments[s] + (CUdeviceptr)i * 1024,
                                                  .size_bytes = BLOCK_BYTES};
            assert_true(rs_block_enter(&stack, &blocks[s][i], 0));
        }
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    stack.kind = RS_KIND_DEVICE;
    atomic_store(&context.alive, false);
    rs_block_forget_all(&context);
    rs_segment_remove_all(&stack.environment);
    return 0;
}

FIXTURE(set_up, tear_down);

/* As the program's free does it. */
static void free_block(const struct rs_allocation *block)
{
    struct rs_taken_block taken;

    assert_true(rs_block_claim(block->address, 1u << stack.kind, &taken));
    rs_sync_memops_freed(&taken);
}

TEST(each_block_answers_for_itself)
{
    assert_int_equal(set(blocks[0][1].address + 500, true), CUDA_SUCCESS);
    assert_true(rs_block_syncs_memops(rs_block_around(blocks[0][1].address)));
    assert_false(rs_block_syncs_memops(rs_block_around(blocks[0][0].address)));
    assert_false(rs_block_syncs_memops(rs_block_around(blocks[0][2].address)));
    assert_int_equal(driver_value[0], 1);
    assert_int_equal(driver_value[1], 0);
}

TEST(sync_memops_stay_while_one_block_wants_them)
{
    unsigned calls;

    assert_int_equal(set(blocks[0][0].address, true), CUDA_SUCCESS);
    assert_int_equal(set(blocks[0][1].address, true), CUDA_SUCCESS);
    assert_int_equal(set(blocks[1][0].address, true), CUDA_SUCCESS);
    calls = driver_calls;
    assert_int_equal(set(blocks[0][0].address, false), CUDA_SUCCESS);
    assert_int_equal(driver_calls, calls); /* not even for a moment */
    assert_int_equal(driver_value[0], 1);
    free_block(&blocks[0][1]);
    assert_int_equal(driver_value[0], 0); /* the last of its segment; another's does not matter */
    assert_int_equal(driver_value[1], 1);
}

TEST(a_free_of_another_block_changes_nothing)
{
    unsigned calls;

    assert_int_equal(set(blocks[0][0].address, true), CUDA_SUCCESS);
    calls = driver_calls;
    free_block(&blocks[0][1]);
    assert_int_equal(driver_calls, calls);
    assert_int_equal(driver_value[0], 1);
}

TEST(a_reused_block_starts_without_sync_memops)
{
    assert_int_equal(set(blocks[0][0].address, true), CUDA_SUCCESS);
    free_block(&blocks[0][0]);
    assert_int_equal(driver_value[0], 0);
    assert_true(rs_block_enter(&stack, &blocks[0][0], 0));
    assert_false(rs_block_syncs_memops(rs_block_around(blocks[0][0].address)));
}

static bool get(CUdeviceptr address, bool of_the_driver)
{
    return rs_sync_memops_get(address, stack.kind, of_the_driver);
}

/* Wherever it lies: the driver's own managed memory has it. */
TEST(device_memory_starts_without_sync_memops)
{
    assert_false(get(blocks[0][0].address, true));
    assert_int_equal(set(blocks[0][0].address, true), CUDA_SUCCESS);
    assert_true(get(blocks[0][0].address, true));
}

TEST(managed_memory_starts_as_the_driver_says)
{
    CUdeviceptr one = blocks[0][0].address, other = blocks[0][1].address;

    stack.kind = RS_KIND_MANAGED;
    assert_true(get(one, true));
    assert_false(get(one, false));
    assert_int_equal(set(one, false), CUDA_SUCCESS);
    assert_false(get(one, true));
    assert_true(get(other, true));
    assert_int_equal(driver_calls, 0); /* the neighbours have it still */
    assert_int_equal(set(one, true), CUDA_SUCCESS);
    assert_true(get(one, true));
    assert_int_equal(driver_value[0], 1);
    assert_int_equal(set(one, false), CUDA_SUCCESS);
    assert_false(get(one, true));
    rs_sync_memops_note(one); /* P2P tokens */
    assert_true(get(one, true));
    free_block(&blocks[0][0]);
    assert_int_equal(driver_value[0], 1);
    assert_true(rs_block_enter(&stack, &blocks[0][0], 0));
    assert_true(get(one, true));
}

TEST(unsetting_what_was_not_set_asks_nobody)
{
    assert_int_equal(set(blocks[0][0].address, false), CUDA_SUCCESS);
    assert_int_equal(driver_calls, 0);
}

TEST(a_refusal_is_passed_on_and_forgotten)
{
    driver_result = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(set(blocks[0][0].address, true), CUDA_ERROR_INVALID_VALUE);
    assert_false(rs_block_syncs_memops(rs_block_around(blocks[0][0].address)));
    driver_result = CUDA_SUCCESS;
    assert_int_equal(set(blocks[0][0].address, true), CUDA_SUCCESS);
    driver_result = CUDA_ERROR_INVALID_VALUE;
    assert_int_equal(set(blocks[0][0].address, true), CUDA_ERROR_INVALID_VALUE);
    assert_true(rs_block_syncs_memops(rs_block_around(blocks[0][0].address)));
}

/* The last block that wants it goes while another comes to want it. */
TEST(setting_wins_over_clearing)
{
    assert_int_equal(set(blocks[0][0].address, true), CUDA_SUCCESS);
    set_meanwhile = blocks[0][2].address;
    free_block(&blocks[0][0]);
    assert_true(rs_block_syncs_memops(rs_block_around(blocks[0][2].address)));
    assert_int_equal(driver_value[0], 1);
}

TEST(numbers_are_never_used_again)
{
    uint64_t first = rs_block_id(blocks[0][0].address), second = rs_block_id(blocks[0][1].address);

    assert_true(first != 0 && second != 0 && first != second);
    assert_int_equal(rs_block_id(blocks[0][0].address + BLOCK_BYTES - 1), first);
    assert_int_equal(rs_block_id(blocks[0][0].address + BLOCK_BYTES), 0);
    free_block(&blocks[0][0]);
    assert_int_equal(rs_block_id(blocks[0][0].address), 0);
    assert_true(rs_block_enter(&stack, &blocks[0][0], 0));
    assert_true(rs_block_id(blocks[0][0].address) > second);
}

TEST(a_page_is_near_while_a_block_of_its_segment_lives)
{
    assert_true(rs_block_is_near(segments[0], 4096));
    assert_false(rs_block_is_near(segments[0] + 4096, 4096));
    free_block(&blocks[0][0]);
    free_block(&blocks[0][1]);
    assert_true(rs_block_is_near(segments[0], 4096));
    assert_false(rs_block_is_near(segments[0], 2048));
}
