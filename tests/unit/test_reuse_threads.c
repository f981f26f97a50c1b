/* SPDX-License-Identifier: Apache-2.0 */
/* reuse under many threads: none ever gets a block that work still uses, and none misses one. */
#include "driver/capture.h"
#include "resource/reuse/reuse.h"
#include "reuse_stack.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { THREADS = 8, ROUNDS = 4000, HELD = 32, ADDRESSES = 1 << 20 };

/* What the latest work on each 512 bytes of the leaf's addresses was, and above it the number of
 * the stream in whose order they were freed. */
enum { STREAM_SHIFT = 48 };

static _Atomic uint64_t last_work[ADDRESSES];
static bool in_order; /* half of all calls are in the order of the thread's stream */
static _Atomic unsigned early;

static _Atomic uint64_t *work_at(CUdeviceptr address)
{
    size_t at = (size_t)(address - 0x10000000) / UNIT_BYTES;

    assert_true(at < ADDRESSES);
    return &last_work[at];
}

static void mark(const struct rs_allocation *allocation, uint64_t work,
                 const struct fake_stream *stream)
{
    uint64_t tag = stream ? (uint64_t)stream->id << STREAM_SHIFT : 0;

    for (size_t at = 0; at < allocation->size_bytes; at += UNIT_BYTES)
        atomic_store(work_at(allocation->address + at), work | tag);
}

static void expect_done(const struct rs_allocation *allocation, const struct fake_stream *stream)
{
    uint64_t done = atomic_load(&completed), last;

    for (size_t at = 0; at < allocation->size_bytes; at += UNIT_BYTES) {
        last = atomic_load(work_at(allocation->address + at));
        if (last << 16 >> 16 > done && !(stream && last >> STREAM_SHIFT == stream->id))
            atomic_fetch_add(&early, 1);
    }
}

struct worker {
    struct stack *stack;
    uint64_t seed;
    struct fake_stream stream;
};

static void *work(void *data)
{
    struct worker *worker = data;
    struct rs_allocation held[HELD];
    unsigned count = 0;

    thread.depth = 0;
    (void)fake_push(CTX);
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t random = test_random(&worker->seed);
        struct fake_stream *stream = in_order && random >> 40 & 1 ? &worker->stream : NULL;
        if (count < HELD && (count == 0 || random % 2)) {
            size_t bytes = 1 + test_random(&worker->seed) % (random % 64 ? 8192 : 2 * MIB);
            if (rs_mr_allocate(worker->stack->mr, bytes, handle_of(stream), &held[count]) !=
                CUDA_SUCCESS)
                continue;
            expect_done(&held[count++], stream);
        } else {
            unsigned at = (unsigned)(random >> 8) % count;
            mark(&held[at], submit(), stream);
            assert_int_equal(rs_mr_deallocate(worker->stack->mr, &held[at], handle_of(stream)),
                             CUDA_SUCCESS);
            held[at] = held[--count];
        }
        if (random % 16 == 0)
            complete_to(atomic_load(&submitted) -
                        (random >> 16) % 64 % (atomic_load(&submitted) + 1));
        if (random % 512 == 0) {
            rs_capture_begin_enter();
            rs_capture_begin_leave((struct rs_capture_stream){.identity = worker}, true);
        } else if (random % 64 == 0) {
            rs_capture_ended((struct rs_capture_stream){.identity = worker});
        }
    }
    while (count)
        assert_int_equal(rs_mr_deallocate(worker->stack->mr, &held[--count], NULL), CUDA_SUCCESS);
    for (unsigned i = 0; i < ROUNDS; i++)
        rs_capture_ended((struct rs_capture_stream){.identity = worker});
    return NULL;
}

static void run_threads(struct stack *stack)
{
    pthread_t threads[THREADS];
    struct worker workers[THREADS]; /* two on each stream */

    for (size_t i = 0; i < ADDRESSES; i++)
        atomic_store(&last_work[i], 0);
    atomic_store(&early, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){stack, 0x9e3779b97f4a7c15 * (i + 1), {.id = 1 + i / 2}};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    complete_all();
    assert_int_equal(atomic_load(&early), 0);
}

TEST(threads_with_streams_never_get_a_busy_block)
{
    struct stack stack = start(96 * MIB, "initial_size=16MiB");

    in_order = true;
    run_threads(&stack);
    in_order = false;
    assert_true(counter(&stack, "stream_reuses") > 100);
    assert_true(counter(&stack, "epochs_retired") > 1);
    end(&stack);
}

TEST(threads_never_get_a_busy_block)
{
    struct stack stack = start(96 * MIB, "initial_size=16MiB");

    run_threads(&stack);
    assert_true(counter(&stack, "epochs_retired") > 10);
    assert_true(counter(&stack, "epochs_sealed") >= counter(&stack, "epochs_retired"));
    end(&stack);
}

TEST(threads_never_get_a_busy_block_on_an_old_driver)
{
    struct stack stack = start_old(96 * MIB, "initial_size=16MiB");

    run_threads(&stack);
    assert_true(counter(&stack, "full_waits") > 10);
    end(&stack);
}

/* While `round` is odd nothing is live, so all that is held is idle. */
static _Atomic unsigned round_now, reads, missed;
static _Atomic bool is_over;

static void *read_idle(void *data)
{
    struct stack *stack = data;

    while (!atomic_load(&is_over)) {
        unsigned before = atomic_load(&round_now);
        size_t idle_bytes = rs_mr_idle_bytes(stack->mr);
        if (before % 2 && atomic_load(&round_now) == before && idle_bytes < stack->leaf->live_bytes)
            atomic_fetch_add(&missed, 1);
        atomic_fetch_add(&reads, 1);
    }
    return NULL;
}

static void wait_for_read(void)
{
    unsigned before = atomic_load(&reads);

    while (atomic_load(&reads) - before < 2)
        sched_yield();
}

TEST(a_block_that_becomes_ready_is_idle_all_the_while)
{
    enum { TURNS = 200 };
    struct stack stack = start(64 * MIB, "initial_size=64MiB");
    struct rs_allocation block;
    pthread_t reader;

    atomic_store(&round_now, 0);
    atomic_store(&missed, 0);
    atomic_store(&is_over, false);
    assert_int_equal(pthread_create(&reader, NULL, read_idle, &stack), 0);
    for (unsigned i = 0; i < TURNS; i++) {
        block = take(&stack, 64 << 10);
        (void)give_busy(&stack, &block);
        seal(&stack);
        complete_all();
        atomic_fetch_add(&round_now, 1);
        wait_for_read();
        assert_true(rs_reuse_retire(RS_MR_AS(rs_reuse, stack.mr)));
        wait_for_read();
        assert_int_equal(counter(&stack, "kept"), 64 << 10);
        atomic_fetch_add(&round_now, 1);
    }
    atomic_store(&is_over, true);
    assert_int_equal(pthread_join(reader, NULL), 0);
    assert_int_equal(atomic_load(&missed), 0);
    end(&stack);
}
