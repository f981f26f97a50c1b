/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "context/block_counts.h"
#include "context/context.h"
#include "context/limit.h"
#include "context/scope.h"
#include "ledger/account.h"
#include "shared/published.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each test has a device and names of its own: counts and names last as long as the process. */

static void enter(int device, size_t size_bytes)
{
    rs_block_count_entered(rs_block_counter(RS_KIND_PINNED, device), size_bytes);
}

static void leave(int device, size_t size_bytes)
{
    rs_block_count_left(rs_block_counter(RS_KIND_PINNED, device), size_bytes);
}

static const char *push(const char *name)
{
    const char *entered;

    assert_int_equal(rs_phase_push(name, NULL, &entered), 0);
    return entered;
}

static void pop(void)
{
    const char *name;

    assert_int_equal(rs_phase_pop(NULL, &name), 0);
}

static struct rmmshim_phase find(const char *name, enum rs_kind kind, int device)
{
    struct rmmshim_phase phase;

    for (unsigned i = 0; rs_phase_get(i, kind, device, &phase); i++)
        if (strcmp(phase.name, name) == 0)
            return phase;
    fail_msg("no phase %s", name);
    return phase;
}

static struct rmmshim_phase memory_of(const char *name, int device)
{
    return find(name, RS_KIND_PINNED, device);
}

static struct rmmshim_phase phase_of(const char *name)
{
    return find(name, RS_KIND_PINNED, 0);
}

static void expect(struct rmmshim_phase memory, size_t peak, size_t peak_live, uint64_t entered,
                   uint64_t blocks)
{
    assert_int_equal(memory.peak_bytes, peak);
    assert_int_equal(memory.peak_used_bytes, peak_live);
    assert_int_equal(memory.allocated_bytes, entered);
    assert_int_equal(memory.allocations, blocks);
}

static void expect_thread(struct rmmshim_phase memory, size_t peak, uint64_t entered,
                          uint64_t blocks)
{
    assert_int_equal(memory.thread_peak_bytes, peak);
    assert_int_equal(memory.thread_allocated_bytes, entered);
    assert_int_equal(memory.thread_allocations, blocks);
}

TEST(a_phase_has_what_is_allocated_in_it)
{
    enter(1, 5000);
    leave(1, 4000);
    assert_string_equal(push("one"), "one");
    enter(1, 300);
    enter(1, 200);
    leave(1, 300);
    leave(1, 1000);
    enter(1, 100);
    pop();
    enter(1, 7000);
    expect(memory_of("one", 1), 500, 1500, 600, 3);
    expect_thread(memory_of("one", 1), 500, 600, 3);
    assert_int_equal(phase_of("one").entries, 1);
    assert_int_equal(phase_of("one").open, 0);
}

TEST(inner_phases_count_in_outer_ones)
{
    push("outer");
    enter(2, 10);
    push("first");
    enter(2, 500);
    leave(2, 500);
    pop();
    push("second");
    enter(2, 200);
    leave(2, 200);
    pop();
    enter(2, 5);
    pop();
    expect(memory_of("first", 2), 500, 510, 500, 1);
    expect(memory_of("second", 2), 200, 210, 200, 1);
    expect(memory_of("outer", 2), 510, 510, 715, 4);
    expect_thread(memory_of("outer", 2), 510, 715, 4);
}

TEST(entries_are_summed_up_by_name)
{
    enter(3, 1000);
    for (size_t i = 1; i <= 4; i++) {
        push("step");
        enter(3, 100 * i);
        leave(3, 100 * i);
        pop();
    }
    push("step");
    pop();
    assert_int_equal(phase_of("step").entries, 5);
    expect(memory_of("step", 3), 400, 1400, 1000, 4);
}

/* The thread's allocations below the peak that the process has had take the fast path. */
TEST(a_thread_alone_has_its_exact_peak)
{
    enter(4, 9000);
    leave(4, 9000);
    push("low");
    enter(4, 700);
    leave(4, 700);
    push("lower");
    enter(4, 300);
    leave(4, 300);
    pop();
    enter(4, 600);
    leave(4, 600);
    pop();
    expect_thread(memory_of("lower", 4), 300, 300, 1);
    expect_thread(memory_of("low", 4), 700, 1600, 3);
    expect(memory_of("low", 4), 700, 700, 1600, 3);
}

TEST(phases_that_are_open_are_in_it)
{
    push("open");
    enter(5, 800);
    leave(5, 300);
    expect(memory_of("open", 5), 800, 800, 800, 1);
    assert_int_equal(phase_of("open").open, 1);
    push("open");
    enter(5, 100);
    assert_int_equal(phase_of("open").open, 2);
    expect(memory_of("open", 5), 800, 800, 1000, 3); /* the inner block counts twice */
    pop();
    pop();
    expect(memory_of("open", 5), 800, 800, 1000, 3);
}

/* It had no counts when the phases began. */
TEST(memory_that_is_used_later_counts_from_zero)
{
    push("early");
    enter(6, 50);
    leave(6, 50);
    push("late");
    enter(6, 20);
    pop();
    pop();
    expect(memory_of("early", 6), 50, 50, 70, 2);
    expect_thread(memory_of("early", 6), 50, 70, 2);
    expect(memory_of("late", 6), 20, 20, 20, 1);
}

TEST(a_pop_ends_the_latest_phase_of_its_owner)
{
    static const char other[1];
    const char *name;

    assert_int_equal(rs_phase_pop(NULL, &name), -ERANGE);
    assert_null(name);
    push("mine");
    assert_int_equal(rs_phase_pop(other, &name), -ERANGE);
    assert_int_equal(rs_phase_push("theirs", other, &name), 0);
    enter(7, 10);
    assert_int_equal(rs_phase_pop(NULL, &name), 0);
    assert_string_equal(name, "mine");
    enter(7, 20);
    assert_int_equal(rs_phase_pop(NULL, &name), -ERANGE);
    assert_int_equal(rs_phase_pop(other, &name), 0);
    assert_string_equal(name, "theirs");
    expect(memory_of("mine", 7), 10, 10, 10, 1);
    expect(memory_of("theirs", 7), 30, 30, 30, 2);
}

/* ---- threads ---- */

/* Has `work` done by another thread. */
static void elsewhere(void *(*work)(void *), void *data)
{
    pthread_t id;

    assert_int_equal(pthread_create(&id, NULL, work, data), 0);
    pthread_join(id, NULL);
}

static void *allocate_4000(void *data)
{
    (void)data;
    enter(8, 4000);
    push("beside");
    enter(8, 50);
    leave(8, 4000);
    pop();
    return NULL;
}

TEST(a_thread_counts_apart_from_the_process)
{
    enter(8, 100);
    push("both");
    enter(8, 200);
    elsewhere(allocate_4000, NULL);
    enter(8, 30);
    pop();
    expect(memory_of("both", 8), 4250, 4350, 4280, 4);
    expect_thread(memory_of("both", 8), 230, 230, 2);
    expect(memory_of("beside", 8), 50, 4350, 50, 1);
    expect_thread(memory_of("beside", 8), 50, 50, 1);
}

static void *end_inside(void *data)
{
    (void)data;
    push("left");
    enter(9, 70);
    push("left inside");
    enter(9, 5);
    return NULL;
}

TEST(the_end_of_a_thread_ends_its_phases)
{
    elsewhere(end_inside, NULL);
    elsewhere(end_inside, NULL);
    enter(9, 9000);
    assert_int_equal(phase_of("left").entries, 2);
    assert_int_equal(phase_of("left").open, 0);
    assert_int_equal(phase_of("left").unended, 2);
    expect(memory_of("left", 9), 75, 150, 150, 4);
    expect_thread(memory_of("left", 9), 75, 150, 4);
    assert_int_equal(phase_of("left inside").unended, 2);
    assert_int_equal(phase_of("one").unended, 0);
}

enum { THREADS = 4, ROUNDS = 2000, SIZE = 1000 };

static atomic_uint wrong;

static void *in_phases(void *data)
{
    const char *name;

    (void)data;
    for (int i = 0; i < ROUNDS; i++) {
        push(i % 2 ? "odd" : "even");
        enter(10, SIZE);
        leave(10, SIZE);
        wrong += rs_phase_pop(NULL, &name) != 0 || strcmp(name, i % 2 ? "odd" : "even") != 0;
    }
    return NULL;
}

TEST(threads_lose_nothing_of_phases)
{
    pthread_t ids[THREADS];

    push("all");
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&ids[i], NULL, in_phases, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(ids[i], NULL);
    pop();
    assert_int_equal(wrong, 0);
    assert_int_equal(phase_of("odd").entries, THREADS * ROUNDS / 2);
    assert_int_equal(phase_of("even").open, 0);
    assert_int_equal(memory_of("all", 10).allocated_bytes, (uint64_t)THREADS * ROUNDS * SIZE);
    assert_int_equal(memory_of("all", 10).thread_allocated_bytes, 0);
    assert_in_range(memory_of("all", 10).peak_bytes, SIZE, THREADS * SIZE);
    assert_int_equal(memory_of("odd", 10).thread_allocations, THREADS * ROUNDS / 2);
    assert_int_equal(memory_of("odd", 10).thread_peak_bytes, SIZE);
}

/* ---- other peaks ---- */

TEST(levels_and_phases_keep_each_others_peaks)
{
    struct rmmshim_counters level;

    assert_int_equal(rs_count_levels_push(RS_KIND_PINNED, 11), 0);
    enter(11, 900);
    leave(11, 900);
    push("in a level");
    enter(11, 600);
    leave(11, 600);
    assert_int_equal(rs_count_levels_push(RS_KIND_PINNED, 11), 0);
    enter(11, 40);
    assert_int_equal(rs_count_levels_pop(RS_KIND_PINNED, 11, &level), 0);
    assert_int_equal(level.peak_used_bytes, 40);
    pop();
    assert_int_equal(rs_count_levels_pop(RS_KIND_PINNED, 11, &level), 0);
    assert_int_equal(level.peak_used_bytes, 900);
    expect(memory_of("in a level", 11), 600, 600, 640, 2);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 11).peak_live_bytes, 900);
}

TEST(peaks_of_phases_begin_anew)
{
    push("before");
    enter(12, 300);
    leave(12, 300);
    pop();
    push("across");
    enter(12, 800);
    leave(12, 700);
    rs_phase_reset_peaks(RS_KIND_PINNED, 12);
    expect(memory_of("before", 12), 0, 0, 300, 1);
    expect_thread(memory_of("before", 12), 0, 300, 1);
    expect(memory_of("across", 12), 100, 100, 800, 1);
    enter(12, 50);
    leave(12, 50);
    pop();
    expect(memory_of("across", 12), 150, 150, 850, 2);
    expect_thread(memory_of("across", 12), 150, 850, 2);
    assert_int_equal(rs_block_counts(RS_KIND_PINNED, 12).peak_live_bytes, 800);
}

static struct rmmshim_phase charged_in(const char *name)
{
    return find(name, RS_KIND_DEVICE, 13);
}

static void grow(struct rs_account *account, size_t bytes)
{
    assert_true(rs_account_take(account, bytes, bytes, RS_MEMORY_DEVICE));
    rs_account_taken(account, bytes, bytes, RS_MEMORY_DEVICE);
}

/* As the driver's own allocations are, where no stack serves. */
TEST(phases_have_what_is_charged_without_a_stack)
{
    struct rs_account *account = rs_limit_account(13);

    rs_limit_begin();
    grow(account, 5000);
    rs_account_give(account, 4000, 4000, RS_MEMORY_DEVICE);
    push("charges");
    grow(account, 200);
    rs_account_give(account, 200, 200, RS_MEMORY_DEVICE);
    push("charges more");
    grow(account, 100);
    rs_account_give(account, 100, 100, RS_MEMORY_DEVICE);
    assert_int_equal(charged_in("charges more").peak_charged_bytes, 1100);
    pop();
    pop();
    assert_int_equal(charged_in("charges more").peak_charged_bytes, 1100);
    assert_int_equal(charged_in("charges").peak_charged_bytes, 1200);
    assert_int_equal(charged_in("charges").allocations, 0);
    assert_int_equal(atomic_load(&account->peak_charged_bytes), 5000);
    assert_int_equal(memory_of("charges", 13).peak_charged_bytes, 0); /* pinned */
    push("charged now");
    grow(account, 600);
    push("inside");
    pop();
    rs_account_give(account, 600, 600, RS_MEMORY_DEVICE);
    rs_phase_reset_peaks(RS_KIND_DEVICE, 13);
    assert_int_equal(charged_in("charges").peak_charged_bytes, 0);
    assert_int_equal(charged_in("charged now").peak_charged_bytes, 1000);
    pop();
}

/* ---- what is bounded ---- */

TEST(phases_too_deep_are_only_entries)
{
    for (int i = 0; i < RS_PHASE_DEPTH; i++)
        assert_non_null(push("deep"));
    assert_null(push("too deep"));
    assert_null(push("too deep"));
    enter(14, 100);
    assert_int_equal(phase_of("too deep").entries, 2);
    assert_int_equal(phase_of("too deep").open, 0);
    for (int i = 0; i < RS_PHASE_DEPTH + 2; i++)
        pop();
    expect(memory_of("deep", 14), 100, 100, 100 * RS_PHASE_DEPTH, RS_PHASE_DEPTH);
    expect(memory_of("too deep", 14), 0, 0, 0, 0);
    assert_int_equal(phase_of("deep").open, 0);
}

TEST(phases_too_deep_are_their_owner_s)
{
    static const char other[1], third[1];
    const char *name;

    for (int i = 0; i < RS_PHASE_DEPTH; i++)
        assert_int_equal(rs_phase_push("wide", i ? NULL : other, &name), 0);
    assert_null(push("wider"));
    assert_null(push("wider"));
    assert_int_equal(rs_phase_pop(third, &name), -ERANGE);
    assert_int_equal(rs_phase_pop(other, &name), 0);
    assert_string_equal(name, "wide");
    assert_null(push("wider")); /* inside one that is too deep, though there is room now */
    assert_int_equal(rs_phase_pop(other, &name), -ERANGE);
    assert_int_equal(phase_of("wide").open, RS_PHASE_DEPTH - 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rs_phase_pop(NULL, &name), 0);
        assert_null(name);
    }
    for (int i = 1; i < RS_PHASE_DEPTH; i++)
        pop();
    assert_int_equal(rs_phase_pop(NULL, &name), -ERANGE);
}

static int look_after_fork(void)
{
    struct rmmshim_phase phase;

    if (rs_published_begin(64) != 0)
        return 7;
    rs_block_counts_begin(); /* as in a program, the child's counters are others */
    rs_scopes_forked();
    enter(16, 7);
    if (!rs_phase_get(0, RS_KIND_PINNED, 16, &phase) || strcmp(phase.name, "kept") != 0)
        return 1;
    if (phase.entries != 2 || phase.open != 2 || phase.unended != 0)
        return 2;
    if (phase.allocations != 2 || phase.allocated_bytes != 14 || phase.thread_allocated_bytes != 14)
        return 6; /* both have what the child has allocated, and nothing of the parent's */
    if (!rs_phase_get(1, RS_KIND_PINNED, 16, &phase) || strcmp(phase.name, "inner") != 0)
        return 3;
    if (rs_phase_get(2, RS_KIND_PINNED, 16, &phase))
        return 4;
    pop();
    push("ended");
    return phase_of("ended").entries == 1 && phase_of("kept").open == 1 ? 0 : 5;
}

TEST(a_forked_child_has_the_phases_that_are_open)
{
    int status;

    push("kept");
    pop();
    push("ended");
    pop();
    enter(16, 1000);
    push("kept");
    push("inner");
    enter(16, 100);
    push("kept");
    switch (fork()) {
    case 0:
        _exit(look_after_fork());
    default:
        assert_true(wait(&status) > 0);
    }
    assert_int_equal(status, 0);
    assert_int_equal(phase_of("kept").entries, 3);
    for (int i = 0; i < 3; i++)
        pop();
}

TEST(a_name_is_cut_between_characters)
{
    char name[300];

    memset(name, 'x', sizeof(name));
    memcpy(name + 125, "\xe2\x82\xac", 3); /* the euro sign */
    name[299] = '\0';
    assert_int_equal(strlen(push(name)), 125);
    pop();
    memcpy(name + 124, "\xe2\x82\xacx", 4);
    assert_int_equal(strlen(push(name)), 127);
    pop();
    assert_string_equal(push("a\nb\x1b[2J\x7f"), "a b [2J ");
    pop();
}

/* The last test: it fills the table of names. */
TEST(names_without_a_place_share_one)
{
    char name[32];

    for (int i = 0; i < 2 * RS_PHASE_NAMES; i++) {
        snprintf(name, sizeof(name), "name %d", i);
        push(name);
        enter(15, 10);
        pop();
    }
    assert_int_equal(phase_of("name 0").entries, 1);
    assert_true(phase_of(RS_PHASE_OTHERS).entries >= RS_PHASE_NAMES);
    assert_int_equal(memory_of(RS_PHASE_OTHERS, 15).allocations, phase_of(RS_PHASE_OTHERS).entries);
    assert_string_equal(push("name 0"), "name 0");
    pop();
    assert_false(rs_phase_get(RS_PHASE_NAMES, RS_KIND_PINNED, 15, &(struct rmmshim_phase){0}));
    assert_true(rs_phase_get(RS_PHASE_NAMES - 1, RS_KIND_PINNED, 15, &(struct rmmshim_phase){0}));
}
