/* SPDX-License-Identifier: Apache-2.0 */
/* Live memory of `virtual` never moves while other threads allocate, and no thread waits without
 * end. */
#include "virtual_stack.h"

#include "base/request.h"
#include "flying_clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

TEST(random_traces_never_touch_what_is_live)
{
    enum { LIVE = 60, STEPS = 6000 };
    struct rs_mr *mr = make(GIB, OPTIONS("granularity=2MiB"));
    struct rs_allocation live[LIVE] = {{0}};
    size_t live_bytes = 0, refused = 0;
    uint64_t seed = 42;

    environment.total_bytes = GIB;
    for (unsigned step = 0; step < STEPS; step++) {
        struct rs_allocation *block = &live[test_random(&seed) % LIVE];
        size_t size_bytes = test_random(&seed) % 4 ? 1 + test_random(&seed) % (300 * KIB)
                                                   : 1 + test_random(&seed) % (200 * MIB);
        if (block->size_bytes) {
            live_bytes -= block->size_bytes;
            give(mr, block);
            block->size_bytes = 0;
        } else if (try_take(mr, size_bytes, block) == CUDA_SUCCESS) {
            live_bytes += size_bytes;
        } else {
            /* Only when it would not fit, each live block's granules rounded outwards. */
            assert_true(live_bytes + size_bytes + LIVE * 4 * MIB > GIB);
            block->size_bytes = 0;
            refused++;
        }
        assert_good(mr);
        if (step % 100 == 99)
            (void)rs_mr_trim(mr, test_random(&seed) % (100 * MIB));
    }
    assert_true(refused > 0);
    assert_true(counter(mr, "moved") > GIB);
    for (size_t i = 0; i < LIVE; i++)
        if (live[i].size_bytes)
            give(mr, &live[i]);
    end(mr);
}

enum { THREADS = 8, ROUNDS = 600, PER_THREAD = 12 };

static atomic_uint refusals, errors;

struct worker {
    pthread_t thread;
    struct rs_mr *mr;
    uint64_t seed;
};

static void *work(void *data)
{
    struct worker *worker = data;
    struct rs_allocation live[PER_THREAD] = {{0}};

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rs_allocation *block = &live[test_random(&worker->seed) % PER_THREAD];
        if (block->size_bytes) {
            fake_vmm_watch(block->address, block->size_bytes, false);
            if (rs_mr_deallocate(worker->mr, block, NULL) != CUDA_SUCCESS)
                atomic_fetch_add(&errors, 1);
            block->size_bytes = 0;
        } else {
            size_t size_bytes = 1 + test_random(&worker->seed) % (5 * MIB);
            CUresult result = rs_mr_allocate(worker->mr, size_bytes, NULL, block);
            if (result == CUDA_SUCCESS)
                fake_vmm_watch(block->address, size_bytes, true);
            if (result == CUDA_SUCCESS && !fake_vmm_is_usable(block->address, size_bytes))
                atomic_fetch_add(&errors, 1);
            if (result != CUDA_SUCCESS)
                atomic_fetch_add(result == CUDA_ERROR_OUT_OF_MEMORY ? &refusals : &errors, 1);
        }
        if (round % 50 == 49)
            (void)rs_mr_trim(worker->mr, 0);
        if (round % 100 == 99 && !rs_mr_check(worker->mr))
            atomic_fetch_add(&errors, 1);
    }
    for (size_t i = 0; i < PER_THREAD; i++) {
        if (!live[i].size_bytes)
            continue;
        fake_vmm_watch(live[i].address, live[i].size_bytes, false);
        (void)rs_mr_deallocate(worker->mr, &live[i], NULL);
    }
    return NULL;
}

static void run_threads(struct rs_mr *mr)
{
    struct worker workers[THREADS];

    atomic_store(&errors, 0);
    atomic_store(&refusals, 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.mr = mr, .seed = 88172645463325252u + i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    assert_int_equal(atomic_load(&errors), 0);
}

TEST(eight_threads_share_it)
{
    struct rs_mr *mr = make(4 * GIB, OPTIONS("granularity=2MiB"));

    run_threads(mr);
    assert_int_equal(atomic_load(&refusals), 0);
    end(mr);
}

TEST(eight_threads_share_too_little)
{
    struct rs_mr *mr = make(80 * MIB, OPTIONS("granularity=2MiB"));

    run_threads(mr);
    end(mr);
}

/* Each thread has one block at a time of so many bytes; there is room for all of them, in the
 * driver's granularity.  Bare, nothing would be refused. */
struct sharer {
    pthread_t thread;
    struct rs_mr *mr;
    uint64_t seed;
    size_t least_bytes, most_bytes;
    unsigned rounds;
};

static void *take_one_at_a_time(void *data)
{
    struct sharer *sharer = data;

    for (unsigned round = 0; round < sharer->rounds; round++) {
        size_t spread = sharer->most_bytes - sharer->least_bytes + 1;
        size_t size_bytes = sharer->least_bytes + test_random(&sharer->seed) % spread;
        struct rs_allocation block;
        CUresult result = rs_mr_allocate(sharer->mr, size_bytes, NULL, &block);
        if (result != CUDA_SUCCESS) {
            atomic_fetch_add(result == CUDA_ERROR_OUT_OF_MEMORY ? &refusals : &errors, 1);
            continue;
        }
        if (test_random(&sharer->seed) % 2)
            sched_yield();
        if (test_random(&sharer->seed) % 4 == 0)
            (void)rs_mr_trim(sharer->mr, 0);
        if (rs_mr_deallocate(sharer->mr, &block, NULL) != CUDA_SUCCESS)
            atomic_fetch_add(&errors, 1);
    }
    return NULL;
}

static unsigned refused_of(unsigned threads, size_t capacity_bytes, size_t least_bytes,
                           size_t most_bytes, const char *granularity, unsigned rounds)
{
    struct rs_mr *mr = make(capacity_bytes, OPTIONS(granularity));
    struct sharer sharers[THREADS];

    fake_vmm.is_slow = true;
    atomic_store(&errors, 0);
    atomic_store(&refusals, 0);
    for (unsigned i = 0; i < threads; i++) {
        sharers[i] = (struct sharer){.mr = mr,
                                     .seed = 88172645463325252u + i,
                                     .least_bytes = least_bytes,
                                     .most_bytes = most_bytes,
                                     .rounds = rounds};
        assert_int_equal(pthread_create(&sharers[i].thread, NULL, take_one_at_a_time, &sharers[i]),
                         0);
    }
    for (unsigned i = 0; i < threads; i++)
        pthread_join(sharers[i].thread, NULL);
    assert_int_equal(atomic_load(&errors), 0);
    end(mr);
    return atomic_load(&refusals);
}

TEST(nobody_is_refused_where_there_is_room)
{
    static const struct {
        unsigned threads;
        size_t capacity_bytes, least_bytes, most_bytes;
        const char *granularity;
    } scenes[] = {
        {4, 32 * MIB, 8 * MIB, 8 * MIB, "granularity=2MiB"},
        {8, 48 * MIB, 6 * MIB, 6 * MIB, "granularity=2MiB"},
        {8, 64 * MIB, 7 * MIB, 7 * MIB, "granularity=2MiB"},
        {4, 68 * MIB, 1, 16 * MIB, "granularity=2MiB"},
        {8, 136 * MIB, 1, 16 * MIB, "granularity=2MiB"},
        {4, 128 * MIB, 32 * MIB, 32 * MIB, "granularity=32MiB"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(scenes); i++)
        assert_int_equal(refused_of(scenes[i].threads, scenes[i].capacity_bytes,
                                    scenes[i].least_bytes, scenes[i].most_bytes,
                                    scenes[i].granularity, 60),
                         0);
}

/* A request that is too large has all free pieces in hand, and gives them back while the second one
 * is refused by the driver: that one has looked before and would find them now. */
static struct {
    struct rs_mr *mr;
    pthread_t thread;
    atomic_bool second_asks;
    CUresult second;
    struct rs_allocation block, piece;
} others;

static void wait_for_the_pieces(void *data)
{
    (void)data;
    atomic_store(&others.second_asks, true);
    while (rs_mr_allocate_with(others.mr, 2 * MIB, NULL, RS_EFFORT_HELD, &others.piece) !=
           CUDA_SUCCESS)
        sched_yield();
}

static void *ask_second(void *data)
{
    (void)data;
    others.second = rs_mr_allocate(others.mr, 6 * MIB, NULL, &others.block);
    return NULL;
}

static void start_second(void *data)
{
    (void)data;
    fake_vmm.on_call = wait_for_the_pieces;
    assert_int_equal(pthread_create(&others.thread, NULL, ask_second, NULL), 0);
    while (!atomic_load(&others.second_asks))
        sched_yield();
}

TEST(what_a_failed_growth_gives_back_is_found)
{
    struct rs_allocation pieces[4], walls[4];
    struct rs_mr *mr = make(20 * MIB, OPTIONS("granularity=2MiB"));

    for (unsigned i = 0; i < 4; i++) {
        pieces[i] = take(mr, 2 * MIB);
        walls[i] = take(mr, 2 * MIB);
    }
    give_many(mr, pieces, 4);
    others.mr = mr;
    atomic_store(&others.second_asks, false);
    fake_vmm.on_call = start_second;
    refuse(mr, 14 * MIB);
    pthread_join(others.thread, NULL);
    assert_int_equal(others.second, CUDA_SUCCESS);
    give(mr, &others.block);
    give(mr, &others.piece);
    give_many(mr, walls, 4);
    end(mr);
}

/* One thread's driver call waits for work that waits for this thread: here both are one. */
static void ask_meanwhile(void *data)
{
    uint64_t begin_ns = atomic_load(&clock_ahead_ns);
    struct rs_allocation block;

    atomic_store(&time_flies, true);
    assert_int_equal(rs_mr_allocate(data, 6 * GIB, NULL, &block), CUDA_ERROR_OUT_OF_MEMORY);
    atomic_store(&time_flies, false);
    assert_in_range(atomic_load(&clock_ahead_ns) - begin_ns, 15 * SECOND_NS, 16 * SECOND_NS);
}

/* What a request has waited elsewhere counts. */
static void ask_late(void *data)
{
    uint64_t begin_ns = atomic_load(&clock_ahead_ns);
    struct rs_allocation block;

    rs_request_begin_until(1); /* long ago */
    atomic_store(&time_flies, true);
    assert_int_equal(rs_mr_allocate(data, 6 * GIB, NULL, &block), CUDA_ERROR_OUT_OF_MEMORY);
    atomic_store(&time_flies, false);
    rs_request_end();
    assert_in_range(atomic_load(&clock_ahead_ns) - begin_ns, 0,
                    SECOND_NS / 100); /* without a wait */
}

TEST(no_request_waits_without_end_for_others)
{
    struct rs_mr *mr = make(10 * GIB, NULL);
    struct rs_allocation first = take(mr, GIB), block;

    fake_vmm.on_access = ask_meanwhile;
    fake_vmm.on_access_data = mr;
    assert_int_equal(rs_mr_access_changed(mr, 3, true), CUDA_SUCCESS);
    fake_vmm.on_access = ask_late;
    assert_int_equal(rs_mr_access_changed(mr, 3, true), CUDA_SUCCESS);
    fake_vmm.on_access = NULL;
    fake_vmm.on_call = ask_meanwhile;
    fake_vmm.on_call_data = mr;
    fake_vmm.capacity_bytes = 6 * GIB;
    block = take(mr, 5 * GIB);
    give(mr, &block);
    block = take(mr, 5 * GIB); /* nobody is alone any more */
    give(mr, &block);
    give(mr, &first);
    end(mr);
}
