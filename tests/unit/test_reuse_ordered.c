/* SPDX-License-Identifier: Apache-2.0 */
/* reuse in the order of a stream: a block freed on a stream is at once free for that same stream.
 */
#include "driver/capture.h"
#include "driver/driver.h"
#include "driver/stream.h"
#include "reuse_stack.h"

#include <stdatomic.h>
#include <string.h>

static struct rs_allocation take_on(struct stack *stack, size_t size_bytes, CUstream stream)
{
    struct rs_allocation allocation;

    charge(stack);
    assert_int_equal(rs_mr_allocate(stack->mr, size_bytes, stream, &allocation), CUDA_SUCCESS);
    assert_int_equal(allocation.size_bytes, size_bytes);
    assert_true(rs_mr_check(stack->mr));
    return allocation;
}

static void give_on(struct stack *stack, const struct rs_allocation *allocation, CUstream stream)
{
    (void)submit();
    charge(stack);
    assert_int_equal(rs_mr_deallocate(stack->mr, allocation, stream), CUDA_SUCCESS);
    assert_true(rs_mr_check(stack->mr));
}

TEST(the_same_stream_gets_its_block_at_once)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b;

    for (unsigned i = 0; i < 1000; i++) {
        give_on(&stack, &a, s);
        assert_int_equal(counter(&stack, "quarantined"), 4 * MIB);
        b = take_on(&stack, 4 * MIB, s);
        assert_int_equal(b.address, a.address);
        assert_int_equal(counter(&stack, "quarantined"), 0);
        a = b;
    }
    assert_int_equal(counter(&stack, "stream_reuses"), 1000);
    assert_int_equal(device.records, 0);
    give_on(&stack, &a, s);
    end(&stack);
}

TEST(another_stream_waits_for_the_fence)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct fake_stream one = {.id = 7}, two = {.id = 8};
    struct rs_allocation a = take_on(&stack, 4 * MIB, handle_of(&one)), b, c, d;

    give_on(&stack, &a, handle_of(&one));
    b = take_on(&stack, 4 * MIB, handle_of(&two));
    assert_true(b.address != a.address);
    c = take_on(&stack, 4 * MIB, NULL); /* on any stream */
    assert_true(c.address != a.address);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    d = take_on(&stack, 4 * MIB, handle_of(&two));
    assert_int_equal(d.address, a.address);
    give_on(&stack, &b, handle_of(&two));
    give_on(&stack, &c, NULL);
    give_on(&stack, &d, handle_of(&two));
    end(&stack);
}

/* Of merged epochs too. */
TEST(ordered_blocks_can_be_taken_back_however_many_there_are)
{
    enum { EPOCHS = 300 };
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    static struct rs_allocation blocks[EPOCHS];

    for (unsigned i = 0; i < EPOCHS; i++)
        blocks[i] = take_on(&stack, UNIT_BYTES * (i + 1), s);
    for (unsigned i = 0; i < EPOCHS; i++) {
        give_on(&stack, &blocks[i], s);
        turn(&stack);
    }
    assert_int_equal(counter(&stack, "epochs_sealed"), EPOCHS);
    assert_int_equal(counter(&stack, "quarantined_blocks"), EPOCHS);
    for (unsigned i = 0; i < EPOCHS; i += 10)
        blocks[i] = take_on(&stack, UNIT_BYTES * (i + 1), s);
    assert_int_equal(counter(&stack, "stream_reuses"), EPOCHS / 10);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    for (unsigned i = 0; i < EPOCHS; i += 10)
        give_on(&stack, &blocks[i], s);
    end(&stack);
}

/* The handle of a destroyed stream comes back for a new one; its block retires as others do. */
TEST(a_recycled_handle_is_another_stream)
{
    struct stack stack = start(PLENTY, "initial_size=8MiB");
    struct fake_stream stream = {.id = 7};
    struct rs_allocation a = take_on(&stack, 4 * MIB, handle_of(&stream)), b, c;

    give_on(&stack, &a, handle_of(&stream));
    stream.id = 9;
    b = take_on(&stack, 4 * MIB, handle_of(&stream));
    assert_true(b.address != a.address);
    turn(&stack);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    c = take_on(&stack, 4 * MIB, handle_of(&stream));
    assert_int_equal(c.address, a.address);
    give_on(&stack, &b, handle_of(&stream));
    give_on(&stack, &c, handle_of(&stream));
    end(&stack);
}

/* What is captured runs later and again: neither a free nor an allocation in it has an order. */
TEST(a_capture_has_no_order)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 4 * MIB, s), c, d;

    give_on(&stack, &a, s);
    stream.capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    c = take_on(&stack, 4 * MIB, s);
    assert_true(c.address != a.address);
    give_on(&stack, &b, s);
    stream.capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    d = take_on(&stack, 4 * MIB, s);
    assert_true(d.address != a.address && d.address != b.address);
    give_on(&stack, &d, s);
    stream.capture = CU_STREAM_CAPTURE_STATUS_NONE;
    stream.answer = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    d = take_on(&stack, 4 * MIB, s);
    assert_true(d.address != a.address && d.address != b.address);
    stream.answer = CUDA_SUCCESS;
    b = take_on(&stack, 4 * MIB, s);
    assert_int_equal(b.address, a.address); /* freed before the capture */
    a = take_on(&stack, 4 * MIB, s);
    assert_int_equal(counter(&stack, "stream_reuses"), 1);
    give_on(&stack, &a, s);
    give_on(&stack, &b, s);
    give_on(&stack, &c, s);
    give_on(&stack, &d, s);
    end(&stack);
}

/* Freed after its stream died: the handle is not asked about, and if it came back, it is another's.
 */
TEST(a_destroyed_stream_has_no_order)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 4 * MIB, s), c, d;

    rs_stream_destroyed(s);
    stream.is_dead = true;
    give_on(&stack, &a, s);
    stream = (struct fake_stream){.id = 8}; /* a new stream with the handle */
    c = take_on(&stack, 4 * MIB, s);
    assert_true(c.address != a.address);
    give_on(&stack, &b, s); /* the first stream's: its work may still run */
    d = take_on(&stack, 4 * MIB, s);
    assert_true(d.address != a.address && d.address != b.address);
    give_on(&stack, &c, s);
    a = take_on(&stack, 4 * MIB, s);
    assert_int_equal(a.address, c.address); /* the new stream's own */
    give_on(&stack, &a, s);
    give_on(&stack, &d, s);
    end(&stack);
}

TEST(a_sealed_block_can_still_be_taken_back)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 6 * MIB, s),
                         c = take_on(&stack, 8 * MIB, s), d, other;
    uint64_t first;

    give_on(&stack, &a, s);
    give_on(&stack, &b, s);
    give_on(&stack, &c, s);
    first = atomic_load(&submitted);
    turn(&stack);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    d = take_on(&stack, 6 * MIB, s); /* out of the middle */
    assert_int_equal(d.address, b.address);
    give_on(&stack, &d, s); /* freed again: behind that fence */
    complete_to(first);
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 6 * MIB);
    other = take_on(&stack, 6 * MIB, NULL);
    assert_true(other.address != b.address);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    give_on(&stack, &other, NULL);
    end(&stack);
}

TEST(an_ordered_free_during_the_seal_is_not_covered)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 6 * MIB, s);
    uint64_t first;

    late.stack = &stack;
    late.allocation = b;
    late.stream = s;
    give_on(&stack, &a, s);
    first = atomic_load(&submitted);
    device.in_record = free_late;
    turn(&stack); /* seals a; b is freed behind the fence */
    assert_null(device.in_record);
    complete_to(first);
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 6 * MIB);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    end(&stack);
}

TEST(only_blocks_that_fit_are_taken_back)
{
    static const struct {
        size_t freed, asked;
        bool fits;
    } rows[] = {
        {512, 1, true},
        {512, 512, true},
        {1024, 512, false},
        {4096, 4096, true},
        {4096, 3584, false},
        {4608, 4096, true},
        {9 * MIB, 8 * MIB, true},
        {10 * MIB, 8 * MIB, false},
        {8 * MIB, 8 * MIB + 1, false},
        {8 * MIB + 1, 8 * MIB, true},
        {1000, 1020, true}, /* both 1024 bytes upstream */
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct stack stack = start(PLENTY, "initial_size=64MiB");
        struct fake_stream stream = {.id = 7};
        CUstream s = handle_of(&stream);
        struct rs_allocation a = take_on(&stack, rows[i].freed, s), b;
        give_on(&stack, &a, s);
        b = take_on(&stack, rows[i].asked, s);
        assert_int_equal(b.address == a.address, rows[i].fits);
        give_on(&stack, &b, s);
        end(&stack);
    }
}

TEST(the_best_fit_is_taken_back)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4608, s), b = take_on(&stack, 4096, s), c;

    give_on(&stack, &a, s);
    give_on(&stack, &b, s);
    c = take_on(&stack, 4000, s);
    assert_int_equal(c.address, b.address);
    give_on(&stack, &c, s);
    end(&stack);
}

/* More than can be found by their stream: the rest waits for its fence, and none is lost. */
TEST(the_cache_is_bounded)
{
    enum { MANY = 120 }; /* fewer than are sealed at once */
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    static struct rs_allocation blocks[MANY];
    uint64_t found;

    for (unsigned i = 0; i < MANY; i++)
        blocks[i] = take_on(&stack, 4096, s);
    for (unsigned i = 0; i < MANY; i++)
        give_on(&stack, &blocks[i], s);
    for (unsigned i = 0; i < MANY; i++)
        blocks[i] = take_on(&stack, 4096, s);
    found = counter(&stack, "stream_reuses");
    assert_true(found > 0 && found < MANY);
    assert_int_equal(counter(&stack, "quarantined_blocks"), MANY - found);
    for (unsigned i = 0; i < MANY; i++)
        give_on(&stack, &blocks[i], s);
    complete_all();
    turn(&stack);
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    end(&stack);
}

TEST(a_full_device_waits_for_ordered_blocks_too)
{
    struct stack stack = start(8 * MIB, "initial_size=8MiB");
    struct fake_stream one = {.id = 7}, two = {.id = 8};
    struct rs_allocation a = take_on(&stack, 8 * MIB, handle_of(&one)), b;

    give_on(&stack, &a, handle_of(&one));
    complete_after_ms(30);
    b = take_on(&stack, 8 * MIB, handle_of(&two));
    assert_int_equal(b.address, a.address);
    give_on(&stack, &b, handle_of(&two));
    end(&stack);
}

TEST(without_stream_numbers_there_is_no_order)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    struct rs_allocation a = take_on(&stack, 4 * MIB, handle_of(&stream)), b;

    rs_driver.cuStreamGetId = NULL;
    give_on(&stack, &a, handle_of(&stream));
    b = take_on(&stack, 4 * MIB, handle_of(&stream));
    assert_true(b.address != a.address);
    give_on(&stack, &b, handle_of(&stream));
    end(&stack);
}

/* The handle means another stream in another context. */
TEST(the_legacy_stream_is_the_current_contexts)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct rs_allocation a = take_on(&stack, 4 * MIB, CU_STREAM_LEGACY), b;
    CUcontext popped;

    give_on(&stack, &a, CU_STREAM_LEGACY);
    (void)fake_push(OTHER);
    b = take_on(&stack, 4 * MIB, CU_STREAM_LEGACY);
    assert_true(b.address != a.address);
    give_on(&stack, &b, CU_STREAM_LEGACY);
    (void)fake_pop(&popped);
    b = take_on(&stack, 4 * MIB, CU_STREAM_LEGACY);
    assert_int_equal(b.address, a.address);
    give_on(&stack, &b, CU_STREAM_LEGACY);
    end(&stack);
}

/* As cudaFreeAsync: the block waits in quarantine, and its free does not. */
TEST(free_wait_waits_for_no_free_on_a_stream)
{
    struct fake_stream stream = {.id = 7};
    struct rs_allocation a, b;
    struct stack stack;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY, OPTIONS("initial_size=8MiB"), "free=wait");
    a = take_on(&stack, 4 * MIB, handle_of(&stream));
    give_on(&stack, &a, handle_of(&stream));
    assert_int_equal(device.waits, 0);
    assert_int_equal(counter(&stack, "quarantined"), 4 * MIB);
    b = take_on(&stack, 4 * MIB, handle_of(&stream));
    assert_true(b.address != a.address); /* this mode knows no order */
    complete_all();
    turn(&stack);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    assert_int_equal(device.waits, 0);
    give(&stack, &b);
    assert_int_equal(device.waits, 1);
    end(&stack);
}

/* The same stream has its block back meanwhile, and a free that names no stream waits for all. */
TEST(on_an_old_driver_frees_on_a_stream_wait_now_and_then)
{
    struct stack stack = start_old(PLENTY, "initial_size=8MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation blocks[SEAL_COUNT], a;

    for (unsigned i = 0; i < SEAL_COUNT; i++)
        blocks[i] = take_on(&stack, 1024, s);
    for (unsigned i = 0; i < SEAL_COUNT - 1; i++)
        give_on(&stack, &blocks[i], s);
    assert_int_equal(device.waits, 0);
    assert_int_equal(counter(&stack, "quarantined_blocks"), SEAL_COUNT - 1);
    a = take_on(&stack, 1024, s);
    assert_int_equal(counter(&stack, "stream_reuses"), 1);
    give_on(&stack, &a, s);
    give_on(&stack, &blocks[SEAL_COUNT - 1], s);
    assert_int_equal(device.waits, 1);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    a = take_on(&stack, 1024, s);
    give_on(&stack, &a, s);
    a = take(&stack, 1024);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 1);
    (void)give_busy(&stack, &a);
    assert_int_equal(device.waits, 2);
    assert_int_equal(counter(&stack, "quarantined_blocks"), 0);
    end(&stack);
}

/* No allocation could wait for it: where the limit, or the device's memory, leaves little room. */
TEST(on_an_old_driver_a_free_on_a_stream_waits_where_there_is_no_more)
{
    struct fake_stream stream = {.id = 7};

    for (unsigned is_device = 0; is_device < 2; is_device++) {
        struct stack stack = start_old(PLENTY, "initial_size=0");
        size_t size_bytes = is_device ? environment.total_bytes - MIB : MIB;
        struct rs_allocation a = take_on(&stack, MIB, handle_of(&stream)), rest;
        atomic_store(&account.limit_bytes, is_device ? 0 : 10 * MIB);
        rest = take(&stack, size_bytes);
        give_on(&stack, &a, handle_of(&stream));
        assert_int_equal(device.waits, 1);
        assert_int_equal(counter(&stack, "quarantined"), 0);
        give(&stack, &rest);
        end(&stack);
    }
}

/* Others' memory is not looked at before. */
TEST(on_an_old_driver_a_free_on_a_stream_waits_after_a_refusal)
{
    struct stack stack = start_old(16 * MIB, "initial_size=16MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 8 * MIB, s), b = take_on(&stack, 8 * MIB, s), c;

    give_on(&stack, &a, s);
    assert_int_equal(device.waits, 0);
    assert_int_equal(try(&stack, 8 * MIB, &c), CUDA_ERROR_OUT_OF_MEMORY);
    give_on(&stack, &b, s);
    assert_int_equal(device.waits, 1);
    c = take(&stack, 16 * MIB);
    give(&stack, &c);
    end(&stack);
}

TEST(where_fences_are_refused_frees_on_a_stream_wait_now_and_then)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    struct rs_allocation a = take_on(&stack, SEAL_MIB * MIB, handle_of(&stream));

    device.record_answer = CUDA_ERROR_NOT_SUPPORTED;
    give_on(&stack, &a, handle_of(&stream));
    assert_int_equal(device.waits, 1);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    device.record_answer = CUDA_SUCCESS;
    end(&stack);
}

TEST(a_failed_seal_leaves_ordered_blocks_open)
{
    struct stack stack = start(PLENTY, "initial_size=64MiB");
    struct fake_stream stream = {.id = 7};
    CUstream s = handle_of(&stream);
    struct rs_allocation a = take_on(&stack, 4 * MIB, s), b = take_on(&stack, 6 * MIB, s), c;

    give_on(&stack, &a, s);
    give_on(&stack, &b, s);
    begin_capture();
    turn(&stack);
    assert_int_equal(counter(&stack, "epochs_sealed"), 0);
    rs_capture_ended(capturing);
    c = take_on(&stack, 4 * MIB, s);
    assert_int_equal(c.address, a.address);
    turn(&stack);
    assert_int_equal(counter(&stack, "epochs_sealed"), 1);
    complete_all();
    turn(&stack);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    give_on(&stack, &c, s);
    end(&stack);
}
