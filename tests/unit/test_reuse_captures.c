/* SPDX-License-Identifier: Apache-2.0 */
/* reuse: while a stream captures no fence can be recorded.  Frees wait for the device instead when
 * too much is quarantined, and allocations never do. */
#include "driver/capture.h"
#include "driver/driver.h"
#include "resource/reuse/reuse.h"
#include "reuse_stack.h"
#include "until.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

TEST(nothing_is_sealed_while_a_stream_captures)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 16 * MIB), b, c;

    begin_capture();
    (void)give_busy(&stack, &a);
    b = take(&stack, 16 * MIB);
    assert_int_equal(device.records, 0);
    assert_int_equal(counter(&stack, "epochs_sealed"), 0);
    assert_int_equal(stack.leaf->live_bytes, 32 * MIB);
    rs_capture_ended((struct rs_capture_stream){.identity = &stack}); /* another stream's end */
    assert_int_equal(rs_mr_trim(stack.mr, 0), 0);
    assert_int_equal(device.records, 0);
    rs_capture_ended(capturing);
    complete_all();
    c = take(&stack, 16 * MIB);
    assert_int_equal(c.address, a.address);
    assert_int_equal(device.records, 1);
    give(&stack, &b);
    give(&stack, &c);
    end(&stack);
}

TEST(a_capture_that_does_not_begin_leaves_the_gate_open)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, MIB);

    rs_capture_begin_enter();
    rs_capture_begin_leave(capturing, false);
    (void)give_busy(&stack, &a);
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(device.records, 1);
    end(&stack);
}

TEST(a_capture_that_is_just_beginning_holds_the_gate)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, MIB), b;

    begin_elsewhere();
    (void)give_busy(&stack, &a);
    b = take(&stack, MIB);
    assert_true(b.address != a.address);
    assert_int_equal(device.records, 0);
    fail_to_begin_elsewhere();
    give(&stack, &b);
    end(&stack);
}

static struct {
    pthread_t thread;
    _Atomic pid_t id;
    _Atomic bool began;
} beginner;

static void *begin_and_leave(void *unused)
{
    atomic_store(&beginner.id, gettid());
    rs_capture_begin_enter();
    atomic_store(&beginner.began, true);
    rs_capture_begin_leave(capturing, false);
    return unused;
}

static void start_to_begin(void)
{
    assert_int_equal(pthread_create(&beginner.thread, NULL, begin_and_leave, NULL), 0);
    assert_true(UNTIL(atomic_load(&beginner.began) ||
                      (beginner.id && is_asleep(beginner.id, NULL)))); /* it waits */
    assert_false(atomic_load(&beginner.began));
}

TEST(no_capture_begins_while_a_fence_is_recorded)
{
    struct stack stack = start(PLENTY, "initial_size=2MiB");
    struct rs_allocation a = take(&stack, MIB);

    atomic_store(&beginner.began, false);
    atomic_store(&beginner.id, 0);
    (void)give_busy(&stack, &a);
    device.in_record = start_to_begin;
    (void)rs_mr_trim(stack.mr, 0);
    assert_int_equal(pthread_join(beginner.thread, NULL), 0);
    assert_true(atomic_load(&beginner.began));
    end(&stack);
}

/* The driver's own wait has no bound, and an allocation of the driver's does not wait. */
TEST(no_allocation_waits_without_bound)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 16 * MIB), b;

    begin_capture();
    (void)give_busy(&stack, &a);
    assert_int_equal(try(&stack, 16 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(device.records, 0);
    assert_int_equal(device.waits, 0);
    rs_capture_ended(capturing);
    complete_all();
    b = take(&stack, 16 * MIB);
    assert_int_equal(b.address, a.address);
    give(&stack, &b);
    end(&stack);
}

/* Programs answer a refusal by freeing something and asking again. */
TEST(after_a_refusal_in_a_capture_the_next_free_waits)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 15 * MIB), spare = take(&stack, 512), b;

    begin_capture();
    (void)give_busy(&stack, &a);
    assert_int_equal(try(&stack, 15 * MIB, &b), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(device.waits, 0);
    give(&stack, &spare);
    assert_int_equal(device.waits, 1);
    b = take(&stack, 15 * MIB);
    spare = take(&stack, 512);
    give(&stack, &spare); /* only that one */
    assert_int_equal(device.waits, 1);
    give(&stack, &b);
    rs_capture_ended(capturing);
    end(&stack);
}

/* One block at a time.  An allocation never waits for it; a free does, past 64 MiB. */
TEST(in_a_long_capture_frees_wait)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a;
    unsigned waits;

    stack.leaf->is_tight = true; /* a gap would misalign what comes next */
    begin_capture();
    for (unsigned i = 0; i < 40; i++) {
        waits = device.waits;
        a = take(&stack, 8 * MIB);
        assert_int_equal(device.waits, waits);
        (void)give_busy(&stack, &a);
        assert_in_range(counter(&stack, "quarantined"), 0, 64 * MIB);
    }
    assert_in_range(device.waits, 4, 6);
    assert_int_equal(counter(&stack, "full_waits"), device.waits);
    assert_int_equal(device.records, 0);
    assert_in_range(stack.leaf->live_bytes, 0, 80 * MIB);
    rs_capture_ended(capturing);
    end(&stack);
}

/* It is there anyway. */
TEST(what_was_held_before_may_wait_for_the_end_of_a_capture)
{
    struct stack stack = start(PLENTY, "initial_size=256MiB");
    struct rs_allocation a;

    begin_capture();
    for (unsigned i = 0; i < 31; i++) {
        a = take(&stack, 8 * MIB);
        (void)give_busy(&stack, &a);
    }
    assert_int_equal(device.waits, 0);
    assert_int_equal(counter(&stack, "quarantined"), 248 * MIB);
    a = take(&stack, 8 * MIB);
    (void)give_busy(&stack, &a);
    assert_int_equal(device.waits, 1);
    assert_int_equal(counter(&stack, "quarantined"), 0);
    rs_capture_ended(capturing);
    end(&stack);
}

/* An allocation would find nothing, and does not wait. */
TEST(in_a_capture_frees_wait_early_where_upstream_is_full)
{
    struct stack stack;
    struct rs_allocation a;
    unsigned waits;

    start_device(true);
    stack = stack_over(&rs_mr_descriptor_pool, PLENTY,
                       OPTIONS("initial_size=48MiB", "maximum_size=48MiB"), "free=deferred");
    begin_capture();
    for (unsigned i = 0; i < 40; i++) {
        waits = device.waits;
        a = take(&stack, 8 * MIB);
        assert_int_equal(device.waits, waits);
        (void)give_busy(&stack, &a);
    }
    assert_in_range(device.waits, 5, 20);
    assert_int_equal(device.records, 0);
    rs_capture_ended(capturing);
    end(&stack);
}

/* On a device of 256 MiB. */
static struct stack start_small(void)
{
    static struct rs_environment small;

    start_device(true);
    small = environment;
    small.total_bytes = 256 * MIB;
    return stack_at(&small, &rs_mr_descriptor_pool, small.total_bytes, OPTIONS("initial_size=0"),
                    "free=deferred");
}

/* The program may ask for its peak again, and an allocation does not wait. */
TEST(in_a_capture_frees_wait_where_the_device_has_little_left)
{
    struct stack stack = start_small();
    struct rs_allocation a = take(&stack, 48 * MIB), b = take(&stack, 128 * MIB), c, d;

    begin_capture();
    (void)give_busy(&stack, &a);
    assert_int_equal(device.waits, 1);
    c = take(&stack, 80 * MIB);
    d = take(&stack, 48 * MIB);
    assert_int_equal(device.waits, 1);
    rs_capture_ended(capturing);
    give(&stack, &b);
    give(&stack, &c);
    give(&stack, &d);
    end(&stack);
}

/* The same blocks on a device with plenty. */
TEST(in_a_capture_frees_do_not_wait_where_the_device_has_enough)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 48 * MIB), b = take(&stack, 128 * MIB);

    begin_capture();
    (void)give_busy(&stack, &a);
    assert_int_equal(device.waits, 0);
    rs_capture_ended(capturing);
    give(&stack, &b);
    end(&stack);
}

static CUresult tell_little(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = 64 * MIB;
    *total_bytes = environment.total_bytes;
    return CUDA_SUCCESS;
}

TEST(in_a_capture_frees_wait_where_others_fill_the_device)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 48 * MIB), b = take(&stack, 128 * MIB);

    rs_driver.cuMemGetInfo_v2 = tell_little;
    begin_capture();
    (void)give_busy(&stack, &a);
    assert_int_equal(device.waits, 1);
    rs_capture_ended(capturing);
    give(&stack, &b);
    end(&stack);
}

static enum rs_readiness readiness;

/* Another free comes while this one waits. */
static void free_and_look(void)
{
    free_late();
    readiness = rs_mr_make_ready(late.stack->mr, 0);
}

TEST(what_another_free_waits_for_is_on_its_way)
{
    struct fake_stream stream = {.id = 7}; /* a free in its order does not wait */
    struct stack stack = start_small();
    struct rs_allocation a = take(&stack, 200 * MIB), b = take(&stack, 512);

    begin_capture();
    late = (typeof(late)){.stack = &stack, .allocation = b, .stream = handle_of(&stream)};
    device.in_free = free_and_look;
    (void)give_busy(&stack, &a);
    assert_int_equal(device.waits, 1);
    assert_int_equal(readiness, RS_READY_PENDING);
    assert_int_equal(rs_mr_make_ready(stack.mr, 0), RS_READY_NOTHING); /* `b` is open */
    rs_capture_ended(capturing);
    end(&stack);
}

/* In the capture no allocation could wait for it. */
TEST(what_was_freed_before_a_capture_gets_its_fence_before)
{
    struct stack stack = start(16 * MIB, "initial_size=16MiB");
    struct rs_allocation a = take(&stack, 15 * MIB), b;

    (void)give_busy(&stack, &a);
    assert_int_equal(device.records, 0);
    rs_mr_synchronise(stack.mr, RS_SYNCHRONISE_CAPTURE);
    assert_int_equal(device.records, 1);
    begin_capture();
    complete_all();
    b = take(&stack, 15 * MIB);
    assert_int_equal(device.waits, 0);
    give(&stack, &b);
    rs_capture_ended(capturing);
    end(&stack);
}

TEST(a_free_in_the_order_of_a_stream_does_not_wait_in_a_capture)
{
    struct fake_stream stream = {.id = 7}, other = {.id = 8};
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a;

    begin_capture();
    for (unsigned i = 0; i < 40; i++) {
        a = take(&stack, 8 * MIB);
        (void)submit();
        charge(&stack);
        assert_int_equal(rs_mr_deallocate(stack.mr, &a, handle_of(i % 2 ? &stream : &other)),
                         CUDA_SUCCESS);
    }
    assert_int_equal(device.waits, 0);
    rs_capture_ended(capturing);
    end(&stack);
}

/* ---- a lock that does not come ---- */

static struct {
    struct rs_reuse *reuse;
    _Atomic bool has_lock, is_over;
} holder;

static _Atomic bool counts_naps;
static _Atomic uint64_t napped_ns;

int __real_nanosleep(const struct timespec *nap, struct timespec *left);
int __wrap_nanosleep(const struct timespec *nap, struct timespec *left);

int __wrap_nanosleep(const struct timespec *nap, struct timespec *left)
{
    if (!counts_naps)
        return __real_nanosleep(nap, left);
    napped_ns += (uint64_t)nap->tv_sec * 1000000000 + (uint64_t)nap->tv_nsec;
    return 0;
}

static void *hold_the_lock(void *unused)
{
    rs_mutex_lock(&holder.reuse->lock);
    holder.has_lock = true;
    while (!holder.is_over)
        (void)sched_yield();
    rs_mutex_unlock(&holder.reuse->lock);
    return unused;
}

/* The holder may be a call of this very thread, whose callback frees the block. */
TEST(while_a_stream_captures_a_free_tries_for_some_milliseconds_to_get_the_lock)
{
    struct stack stack = start(PLENTY, "initial_size=0");
    struct rs_allocation a = take(&stack, 64 * MIB), b = take(&stack, 64 * MIB);
    pthread_t other;

    begin_capture();
    (void)give_busy(&stack, &a); /* notes that a stream captures */
    holder.reuse = RS_MR_AS(rs_reuse, stack.mr);
    assert_int_equal(holder.reuse->refusal, RS_FENCE_CAPTURES);
    assert_int_equal(pthread_create(&other, NULL, hold_the_lock, NULL), 0);
    assert_true(UNTIL(holder.has_lock));
    (void)submit();
    counts_naps = true;
    assert_int_equal(rs_mr_deallocate(stack.mr, &b, NULL), CUDA_SUCCESS);
    counts_naps = false;
    holder.is_over = true;
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_in_range(napped_ns, 2000000, 20000000);
    rs_capture_ended(capturing);
    complete_all();
    end(&stack);
}
