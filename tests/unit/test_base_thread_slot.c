/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "base/check.h"
#include "base/thread_slot.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct owner {
    struct rs_slot_owner slots;
    atomic_uint left;
    _Atomic(void *) last_left;
};

static void note_leave(struct rs_slot_owner *slots, void *object)
{
    struct owner *owner = RS_CONTAINER_OF(slots, struct owner, slots);

    atomic_fetch_add(&owner->left, 1);
    atomic_store(&owner->last_left, object);
}

static void enter(struct owner *owner)
{
    *owner = (struct owner){.left = 0};
    rs_slot_owner_enter(&owner->slots, note_leave);
}

static char objects[40];

/* ---- threads that stop where they are told to ---- */

struct thread {
    pthread_t id;
    struct owner *owner;
    void *object;
    pthread_barrier_t is_set, may_end;
};

static void *hold_object(void *data)
{
    struct thread *thread = data;
    bool good = rs_slot_get(&thread->owner->slots) == NULL &&
                rs_slot_set(&thread->owner->slots, thread->object) &&
                rs_slot_get(&thread->owner->slots) == thread->object;

    pthread_barrier_wait(&thread->is_set);
    pthread_barrier_wait(&thread->may_end);
    return good ? data : NULL;
}

static void begin(struct thread *thread, struct owner *owner, void *object)
{
    thread->owner = owner;
    thread->object = object;
    pthread_barrier_init(&thread->is_set, NULL, 2);
    pthread_barrier_init(&thread->may_end, NULL, 2);
    assert_int_equal(pthread_create(&thread->id, NULL, hold_object, thread), 0);
    pthread_barrier_wait(&thread->is_set);
}

static void end(struct thread *thread)
{
    void *result;

    pthread_barrier_wait(&thread->may_end);
    pthread_join(thread->id, &result);
    assert_non_null(result);
    pthread_barrier_destroy(&thread->is_set);
    pthread_barrier_destroy(&thread->may_end);
}

/* ---- tests ---- */

TEST(each_thread_has_its_own)
{
    struct owner owner;
    struct thread thread;

    enter(&owner);
    assert_true(rs_slot_set(&owner.slots, &objects[0]));
    begin(&thread, &owner, &objects[1]);
    assert_ptr_equal(rs_slot_get(&owner.slots), &objects[0]);
    assert_int_equal(atomic_load(&owner.left), 0);
    end(&thread);
    assert_int_equal(atomic_load(&owner.left), 1);
    assert_ptr_equal(atomic_load(&owner.last_left), &objects[1]);
    rs_slot_owner_remove(&owner.slots);
}

TEST(an_owner_may_end_before_its_threads)
{
    struct owner first, second;
    struct thread thread;

    enter(&first);
    begin(&thread, &first, &objects[0]);
    rs_slot_owner_remove(&first.slots);
    enter(&second); /* at another address or the same: it is somebody else */
    end(&thread);
    assert_int_equal(atomic_load(&first.left), 0);
    assert_int_equal(atomic_load(&second.left), 0);
    rs_slot_owner_remove(&second.slots);
}

TEST(a_new_owner_at_an_old_ones_place_is_another)
{
    struct owner owner;
    struct thread thread;

    enter(&owner);
    assert_true(rs_slot_set(&owner.slots, &objects[0]));
    begin(&thread, &owner, &objects[1]);
    rs_slot_owner_remove(&owner.slots);
    enter(&owner);
    assert_null(rs_slot_get(&owner.slots));
    end(&thread);
    assert_int_equal(atomic_load(&owner.left), 0);
    rs_slot_owner_remove(&owner.slots);
}

/* More owners than a thread remembers: none keeps an object that the thread has forgotten. */
TEST(with_more_owners_than_slots_no_object_is_kept_unknown)
{
    static struct owner owners[RS_ARRAY_LENGTH(objects)];
    size_t kept = 0, left = 0;

    for (size_t i = 0; i < RS_ARRAY_LENGTH(owners); i++)
        enter(&owners[i]);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(owners); i++) {
        assert_null(rs_slot_get(&owners[i].slots));
        assert_true(rs_slot_set(&owners[i].slots, &objects[i]));
        assert_ptr_equal(rs_slot_get(&owners[i].slots), &objects[i]);
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(owners); i++) {
        bool is_kept = rs_slot_get(&owners[i].slots) != NULL;
        assert_int_equal(atomic_load(&owners[i].left), !is_kept);
        assert_ptr_equal(atomic_load(&owners[i].last_left), is_kept ? NULL : &objects[i]);
        kept += is_kept;
        left += !is_kept;
    }
    assert_int_equal(kept, 16);
    assert_int_equal(left, RS_ARRAY_LENGTH(owners) - 16);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(owners); i++)
        rs_slot_owner_remove(&owners[i].slots);
}

/* In the child the lock may be held by a thread that is not there. */
static void leave_in_child(struct rs_slot_owner *slots, void *object)
{
    (void)slots;
    (void)object;
    _exit(1);
}

/* A leak checker would look at a process without its other threads' stacks. */
static void exit_without_handlers(void)
{
    _exit(0);
}

static void *fork_and_end(void *data)
{
    int status = -1;
    pid_t child;

    if (!rs_slot_set(data, &objects[0]))
        return NULL;
    child = fork();
    if (child == 0) {
        atexit(exit_without_handlers);
        pthread_exit(NULL); /* the last thread: the process ends with 0 */
    }
    (void)waitpid(child, &status, 0);
    ((struct rs_slot_owner *)data)->leave = note_leave;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? data : NULL;
}

TEST_IF(unit_has_thread_ends, a_forked_child_gives_nothing_back)
{
    struct owner owner;
    pthread_t thread;
    void *result;

    enter(&owner);
    owner.slots.leave = leave_in_child;
    assert_int_equal(pthread_create(&thread, NULL, fork_and_end, &owner.slots), 0);
    pthread_join(thread, &result);
    assert_non_null(result);
    assert_int_equal(atomic_load(&owner.left), 1);
    rs_slot_owner_remove(&owner.slots);
}

/* Threads that end while owners come and go. */
static void *churn(void *data)
{
    struct owner *owners = data;

    for (unsigned round = 0; round < 200; round++) {
        struct owner mine;
        enter(&mine);
        if (!rs_slot_set(&mine.slots, &mine) || rs_slot_get(&mine.slots) != &mine)
            return NULL;
        for (unsigned i = 0; i < 4; i++)
            if (!rs_slot_get(&owners[i].slots) && !rs_slot_set(&owners[i].slots, &mine))
                return NULL;
        rs_slot_owner_remove(&mine.slots);
    }
    return data;
}

TEST(threads_and_owners_come_and_go)
{
    static struct owner owners[4];
    pthread_t threads[4];
    void *result;

    for (unsigned i = 0; i < 4; i++)
        enter(&owners[i]);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, churn, owners), 0);
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(threads[i], &result);
        assert_non_null(result);
    }
    for (unsigned i = 0; i < 4; i++) {
        assert_true(atomic_load(&owners[i].left) >= 4); /* each thread's end, and earlier ones */
        rs_slot_owner_remove(&owners[i].slots);
    }
}
