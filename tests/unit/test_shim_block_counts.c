/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/check.h"
#include "base/thread.h"
#include "context/block_counts.h"

#include <pthread.h>
#include <stdatomic.h>

enum { KIB = 1 << 10, MIB = 1 << 20 };

/* Each test has a device of its own: counts last as long as the process. */
static struct rs_block_counter *counter_of(int device)
{
    return rs_block_counter(RS_KIND_DEVICE, device);
}

TEST(one_thread_counts_exactly)
{
    struct rs_block_counter *counter = counter_of(1);
    struct rs_block_counts counts;

    rs_block_count_entered(counter, 1000);
    rs_block_count_entered(counter, 500);
    rs_block_count_left(counter, 1000);
    rs_block_count_entered(counter, 300);
    counts = rs_block_counts(RS_KIND_DEVICE, 1);
    assert_int_equal(counts.live_bytes, 800);
    assert_int_equal(counts.peak_live_bytes, 1500);
    assert_int_equal(counts.live_blocks, 2);
    assert_int_equal(counts.peak_live_blocks, 2);
    assert_int_equal(counts.entered, 3);
    assert_int_equal(counts.left, 1);
    assert_int_equal(rs_block_counts(RS_KIND_DEVICE, 2).entered, 0);
    assert_int_equal(rs_block_counts(RS_KIND_MANAGED, 1).entered, 0);
}

/* ---- threads, one after another, each with an index of its own while it lives ---- */

struct job {
    struct rs_block_counter *counter;
    size_t size_bytes;
    unsigned enter, leave, rounds;
    pthread_barrier_t *alive; /* waited for first: so no two have the same index */
};

static void *work(void *data)
{
    const struct job *job = data;

    if (job->alive)
        pthread_barrier_wait(job->alive);
    for (unsigned round = 0; round < job->rounds; round++) {
        for (unsigned i = 0; i < job->enter; i++)
            rs_block_count_entered(job->counter, job->size_bytes);
        for (unsigned i = 0; i < job->leave; i++)
            rs_block_count_left(job->counter, job->size_bytes);
    }
    return NULL;
}

static void run(struct job *jobs, unsigned count)
{
    pthread_barrier_t alive;
    pthread_t ids[RS_THREAD_INDEXES + 16];

    assert_in_range(count, 1, RS_ARRAY_LENGTH(ids));
    pthread_barrier_init(&alive, NULL, count);
    for (unsigned i = 0; i < count; i++) {
        jobs[i].alive = &alive;
        assert_int_equal(pthread_create(&ids[i], NULL, work, &jobs[i]), 0);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&alive);
}

TEST(what_one_enters_another_may_free)
{
    struct rs_block_counter *counter = counter_of(3);
    struct job takes = {counter, KIB, 0, 100, 1, NULL};
    struct rs_block_counts counts;

    for (int i = 0; i < 100; i++)
        rs_block_count_entered(counter, KIB);
    run(&takes, 1);
    rs_block_count_entered(counter, 10 * KIB);
    counts = rs_block_counts(RS_KIND_DEVICE, 3);
    assert_int_equal(counts.live_bytes, 10 * KIB);
    assert_int_equal(counts.live_blocks, 1);
    assert_int_equal(counts.peak_live_bytes, 100 * KIB);
    assert_int_equal(counts.peak_live_blocks, 100);
}

TEST(many_threads_lose_nothing)
{
    enum { THREADS = RS_THREAD_INDEXES + 16, ROUNDS = 10000 }; /* some have to share */
    struct job jobs[THREADS];
    struct rs_block_counts counts;

    for (unsigned i = 0; i < THREADS; i++)
        jobs[i] = (struct job){counter_of(4), KIB, 3, 2, ROUNDS, NULL};
    run(jobs, THREADS);
    counts = rs_block_counts(RS_KIND_DEVICE, 4);
    assert_int_equal(counts.entered, THREADS * 3 * ROUNDS);
    assert_int_equal(counts.left, THREADS * 2 * ROUNDS);
    assert_int_equal(counts.live_blocks, THREADS * ROUNDS);
    assert_int_equal(counts.live_bytes, (size_t)THREADS * ROUNDS * KIB);
    assert_in_range(counts.peak_live_blocks, THREADS * ROUNDS, THREADS * (ROUNDS + 2));
}

/* Peaks that nobody asks for while they last. */
TEST(a_peak_is_missed_by_the_slack_at_most)
{
    enum { THREADS = 8, BLOCKS = 50 };
    struct job jobs[THREADS];
    struct rs_block_counts counts;
    size_t reached = (size_t)THREADS * BLOCKS * 400 * KIB;

    for (unsigned i = 0; i < THREADS; i++)
        jobs[i] = (struct job){counter_of(5), 400 * KIB, BLOCKS, 0, 1, NULL};
    run(jobs, THREADS);
    for (unsigned i = 0; i < THREADS; i++)
        jobs[i] = (struct job){counter_of(5), 400 * KIB, 0, BLOCKS, 1, NULL};
    run(jobs, THREADS);
    counts = rs_block_counts(RS_KIND_DEVICE, 5);
    assert_int_equal(counts.live_bytes, 0);
    assert_in_range(counts.peak_live_bytes, reached - (size_t)THREADS * RS_PEAK_SLACK_BYTES,
                    reached);
    assert_in_range(counts.peak_live_blocks, THREADS * (BLOCKS - RS_PEAK_SLACK_BLOCKS / 2),
                    THREADS * BLOCKS);
}

/* A large block is looked at wherever the thread's share stood before. */
TEST(a_large_block_is_never_missed)
{
    struct job jobs[3];
    struct rs_block_counter *counter = counter_of(6);

    for (unsigned i = 0; i < 3; i++) /* so that more than two have shares */
        jobs[i] = (struct job){counter, KIB, 1, 1, 1, NULL};
    run(jobs, 3);
    rs_block_count_entered(counter, 100 * MIB);
    rs_block_count_left(counter, 100 * MIB);
    jobs[0] = (struct job){counter, 60 * MIB, 1, 0, 1, NULL};
    run(jobs, 1);
    rs_block_count_entered(counter, 50 * MIB);
    rs_block_count_left(counter, 50 * MIB);
    assert_int_equal(rs_block_counts(RS_KIND_DEVICE, 6).peak_live_bytes, 110 * MIB);
}

/* As in a child of fork.  There is no published memory here, of which a child has none of its
 * parent's. */
TEST(counts_begin_at_zero_again)
{
    rs_block_count_entered(counter_of(7), KIB);
    rs_block_counts_begin();
    assert_int_equal(rs_block_counts_devices(RS_KIND_DEVICE), 0);
    rs_block_count_entered(counter_of(7), MIB);
    assert_int_equal(rs_block_counts(RS_KIND_DEVICE, 7).live_bytes, MIB);
    assert_int_equal(rs_block_counts(RS_KIND_DEVICE, 7).live_blocks, 1);
}
