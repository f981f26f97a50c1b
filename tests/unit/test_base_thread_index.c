/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = RS_THREAD_INDEXES + 16 };

struct crowd {
    pthread_barrier_t all_have_one, may_end;
    unsigned indexes[THREADS];
    unsigned count;
};

struct member {
    pthread_t id;
    struct crowd *crowd;
    unsigned number;
};

static void *have_index(void *data)
{
    struct member *member = data;
    unsigned index = rs_thread_index();

    member->crowd->indexes[member->number] = index;
    pthread_barrier_wait(&member->crowd->all_have_one);
    pthread_barrier_wait(&member->crowd->may_end);
    return rs_thread_index() == index ? data : NULL;
}

/* Runs so many threads that are alive at the same time and notes their indexes. */
static void gather(struct crowd *crowd, unsigned count)
{
    static struct member members[THREADS];
    void *good;

    crowd->count = count;
    pthread_barrier_init(&crowd->all_have_one, NULL, count);
    pthread_barrier_init(&crowd->may_end, NULL, count);
    for (unsigned i = 0; i < count; i++) {
        members[i] = (struct member){.crowd = crowd, .number = i};
        assert_int_equal(pthread_create(&members[i].id, NULL, have_index, &members[i]), 0);
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(members[i].id, &good);
        assert_non_null(good);
    }
    pthread_barrier_destroy(&crowd->all_have_one);
    pthread_barrier_destroy(&crowd->may_end);
}

static unsigned owners_of(const struct crowd *crowd, unsigned index)
{
    unsigned owners = 0;

    for (unsigned i = 0; i < crowd->count; i++)
        owners += crowd->indexes[i] == index;
    return owners;
}

TEST(an_index_has_one_owner)
{
    static struct crowd crowd;

    gather(&crowd, THREADS);
    for (unsigned index = 1; index < RS_THREAD_INDEXES; index++)
        assert_in_range(owners_of(&crowd, index), 0, 1);
    /* Those of the shared one, which this thread has not got, are the rest. */
    assert_in_range(owners_of(&crowd, RS_THREAD_INDEX_SHARED), THREADS - RS_THREAD_INDEXES + 1,
                    THREADS - RS_THREAD_INDEXES + 2);
}

TEST(ended_threads_leave_theirs)
{
    static struct crowd crowd;

    for (int i = 0; i < 10; i++) {
        gather(&crowd, RS_THREAD_INDEXES / 2);
        assert_int_equal(owners_of(&crowd, RS_THREAD_INDEX_SHARED), 0);
    }
}

/* ---- destructors of thread data that run later than ours ---- */

static pthread_key_t late_key;
static atomic_uint late_index = 77; /* ThreadSanitizer does not see that pthread_join comes later */

static void look_late(void *data)
{
    /* Once more, until the last round: ours has run by then. */
    atomic_store(&late_index, rs_thread_index());
    (void)pthread_setspecific(late_key, data);
}

static void *end_late(void *data)
{
    (void)pthread_setspecific(late_key, &late_key);
    return rs_thread_index() != RS_THREAD_INDEX_SHARED ? data : NULL;
}

TEST_IF(unit_has_thread_ends, an_ending_thread_has_the_shared_index)
{
    pthread_t id;
    void *good;

    assert_int_equal(pthread_key_create(&late_key, look_late), 0);
    assert_int_equal(pthread_create(&id, NULL, end_late, &late_key), 0);
    pthread_join(id, &good);
    assert_non_null(good);
    assert_int_equal(atomic_load(&late_index), RS_THREAD_INDEX_SHARED);
}

static atomic_uint ending_index = 77;

static void note_index(void)
{
    atomic_store(&ending_index, rs_thread_index());
}

/* Else the next owner's counts would be taken for its own. */
TEST(what_is_called_at_the_end_still_has_the_index)
{
    struct crowd crowd;

    rs_thread_index_at_end(note_index);
    gather(&crowd, 1);
    assert_int_equal(atomic_load(&ending_index), crowd.indexes[0]);
    rs_thread_index_at_end(NULL);
    gather(&crowd, 1);
}
