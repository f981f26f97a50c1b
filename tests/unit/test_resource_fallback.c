/* SPDX-License-Identifier: Apache-2.0 */
/* fallback: which upstream a block comes from, that it goes back to this one, and how often a full
 * upstream is asked.  The clock stands still unless a test moves it. */
#include "unit.h"

#include "driver/driver.h"
#include "fake_leaf.h"
#include "resource/report.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define MIB    ((size_t)1 << 20)
#define PLENTY ((size_t)1 << 50)

/* ---- the clock: the linker leads rs_clock_ns here ---- */

static _Atomic uint64_t now_ns;

int __wrap_clock_gettime(clockid_t clock, struct timespec *time);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    uint64_t now = atomic_load(&now_ns);

    (void)clock;
    *time = (struct timespec){.tv_sec = (time_t)(now / 1000000000),
                              .tv_nsec = (long)(now % 1000000000)};
    return 0;
}

static void pass_ms(unsigned ms)
{
    atomic_fetch_add(&now_ns, ms * 1000000ull);
}

/* ---- stacks ---- */

struct sides {
    struct fake_leaf *first, *second;
    struct rs_mr *mr;
};

static struct sides start(size_t first_bytes, size_t second_bytes)
{
    struct sides sides = {fake_leaf_create(first_bytes), fake_leaf_create(second_bytes), NULL};
    int error;

    sides.second->next_address = (CUdeviceptr)1 << 40;
    sides.mr = make_resource_of_two(&fake_environment, &rs_mr_descriptor_fallback,
                                    &sides.first->base, &sides.second->base, NULL, &error);
    assert_non_null(sides.mr);
    return sides;
}

static void end(struct sides *sides)
{
    assert_true(rs_mr_check(sides->mr));
    assert_int_equal(sides->first->wrong_calls + sides->second->wrong_calls, 0);
    rs_mr_destroy(sides->mr, false);
}

static struct rs_allocation take(struct sides *sides, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(sides->mr, size_bytes, NULL, &allocation), CUDA_SUCCESS);
    assert_int_equal(allocation.size_bytes, size_bytes);
    return allocation;
}

static void give(struct sides *sides, const struct rs_allocation *allocation)
{
    assert_int_equal(rs_mr_deallocate(sides->mr, allocation, NULL), CUDA_SUCCESS);
}

static bool is_first(struct sides *sides, const struct rs_allocation *allocation)
{
    bool first = fake_leaf_owns(sides->first, allocation->address, allocation->size_bytes);

    assert_true(first !=
                fake_leaf_owns(sides->second, allocation->address, allocation->size_bytes));
    return first;
}

static uint64_t counter(struct sides *sides, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    sides->mr->ops.report(sides->mr, &report);
    value = rs_report_value(&report, "fallback", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

/* ---- tests ---- */

TEST(the_second_serves_what_the_first_cannot)
{
    struct sides sides = start(10 * MIB, PLENTY);
    struct rs_allocation first = take(&sides, 8 * MIB), second = take(&sides, 4 * MIB);
    struct rs_allocation small = take(&sides, 2 * MIB);

    assert_true(is_first(&sides, &first));
    assert_false(is_first(&sides, &second));
    assert_true(is_first(&sides, &small)); /* smaller than what was refused */
    assert_int_equal(counter(&sides, "live_first"), 10 * MIB);
    assert_int_equal(counter(&sides, "live_first_blocks"), 2);
    assert_int_equal(counter(&sides, "live_second"), 4 * MIB);
    assert_int_equal(counter(&sides, "live_second_blocks"), 1);
    assert_int_equal(counter(&sides, "fallbacks"), 1);
    assert_int_equal(counter(&sides, "internal_refusals"), 1);
    give(&sides, &second);
    give(&sides, &first);
    give(&sides, &small);
    assert_int_equal(sides.first->live_count + sides.second->live_count, 0);
    assert_int_equal(counter(&sides, "live_first") + counter(&sides, "live_second"), 0);
    assert_int_equal(counter(&sides, "live_second_peak"), 4 * MIB);
    end(&sides);
}

TEST(blocks_come_home_when_there_is_room)
{
    struct sides sides = start(10 * MIB, PLENTY);
    struct rs_allocation first = take(&sides, 8 * MIB), second = take(&sides, 8 * MIB), again;

    give(&sides, &first);
    again = take(&sides, 8 * MIB);
    assert_true(is_first(&sides, &again));
    give(&sides, &again);
    give(&sides, &second);
    end(&sides);
}

/* A refusal by the driver costs what an allocation does. */
TEST(a_full_upstream_is_not_asked_in_vain)
{
    struct sides sides = start(10 * MIB, PLENTY);
    struct rs_allocation first = take(&sides, 9 * MIB), small = take(&sides, MIB), kept[100];

    for (unsigned i = 0; i < 100; i++) {
        kept[i] = take(&sides, 2 * MIB + i);
        assert_false(is_first(&sides, &kept[i]));
    }
    assert_int_equal(sides.first->refusals, 1);
    assert_int_equal(counter(&sides, "refusals_expected"), 99);
    give(&sides, &small); /* 1 MiB came back: not enough for 2, and enough for 1 */
    give(&sides, &kept[0]);
    kept[0] = take(&sides, 2 * MIB);
    assert_false(is_first(&sides, &kept[0]));
    assert_int_equal(sides.first->refusals, 1);
    small = take(&sides, MIB);
    assert_true(is_first(&sides, &small));
    give(&sides, &first);
    give(&sides, &small);
    for (unsigned i = 0; i < 100; i++)
        give(&sides, &kept[i]);
    end(&sides);
}

/* Another process, context or stack may have given memory back. */
TEST(a_full_upstream_is_asked_again_after_a_while)
{
    struct sides sides = start(0, PLENTY);
    struct rs_allocation allocation = take(&sides, MIB);

    give(&sides, &allocation);
    sides.first->capacity_bytes = MIB;
    allocation = take(&sides, MIB);
    assert_false(is_first(&sides, &allocation));
    give(&sides, &allocation);
    pass_ms(10);
    allocation = take(&sides, MIB);
    assert_true(is_first(&sides, &allocation));
    give(&sides, &allocation);
    end(&sides);
}

static struct sides *freeing_sides;
static struct rs_allocation freed_meanwhile;

static void free_meanwhile(void *data)
{
    (void)data;
    give(freeing_sides, &freed_meanwhile);
    freeing_sides->first->fail_at = 1; /* this request came before the free */
    freeing_sides->first->fail_with = CUDA_ERROR_OUT_OF_MEMORY;
}

TEST(what_is_freed_while_the_first_is_asked_counts)
{
    struct sides sides = start(10 * MIB, PLENTY);
    struct rs_allocation refused, next;

    freeing_sides = &sides;
    freed_meanwhile = take(&sides, 10 * MIB);
    sides.first->on_call = free_meanwhile;
    refused = take(&sides, 10 * MIB);
    assert_false(is_first(&sides, &refused));
    next = take(&sides, 10 * MIB);
    assert_true(is_first(&sides, &next));
    give(&sides, &refused);
    give(&sides, &next);
    end(&sides);
}

TEST(both_full_is_out_of_memory_and_recovered_from)
{
    struct sides sides = start(MIB, MIB);
    struct rs_allocation first = take(&sides, MIB), second = take(&sides, MIB), none;

    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(rs_mr_allocate(sides.mr, MIB, NULL, &none), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(sides.first->refusals, 4); /* out of memory is never told from memory */
    sides.first->capacity_bytes = 2 * MIB;
    none = take(&sides, MIB);
    assert_true(is_first(&sides, &none));
    give(&sides, &none);
    give(&sides, &second);
    give(&sides, &first);
    end(&sides);
}

TEST(only_out_of_memory_falls_back)
{
    struct sides sides = start(10 * MIB, PLENTY);
    struct rs_allocation allocation;

    sides.first->fail_at = 1;
    sides.first->fail_with = CUDA_ERROR_ILLEGAL_ADDRESS;
    assert_int_equal(rs_mr_allocate(sides.mr, MIB, NULL, &allocation), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(sides.second->allocations + sides.second->refusals, 0);
    sides.second->fail_at = 1;
    sides.second->fail_with = CUDA_ERROR_UNKNOWN;
    assert_int_equal(rs_mr_allocate(sides.mr, 20 * MIB, NULL, &allocation), CUDA_ERROR_UNKNOWN);
    end(&sides);
}

TEST(a_failed_free_is_no_free)
{
    struct sides sides = start(MIB, PLENTY);
    struct rs_allocation first = take(&sides, MIB), second = take(&sides, MIB);

    sides.second->fail_deallocations_with = CUDA_ERROR_LAUNCH_FAILED;
    assert_int_equal(rs_mr_deallocate(sides.mr, &second, NULL), CUDA_ERROR_LAUNCH_FAILED);
    assert_int_equal(counter(&sides, "live_second"), MIB);
    sides.second->fail_deallocations_with = CUDA_SUCCESS;
    give(&sides, &second);
    give(&sides, &first);
    end(&sides);
}

/* ---- pools on both sides ---- */

static struct sides start_pools(size_t first_bytes)
{
    struct sides sides = {fake_leaf_create(first_bytes), fake_leaf_create(PLENTY), NULL};
    struct rs_mr *first = make_resource(&rs_mr_descriptor_pool, &sides.first->base, NULL);
    struct rs_mr *second = make_resource(&rs_mr_descriptor_pool, &sides.second->base, NULL);
    int error;

    first = make_resource(&rs_mr_descriptor_binning, first,
                          OPTIONS("minimum_size=64KiB", "maximum_size=256KiB"));
    sides.second->next_address = (CUdeviceptr)1 << 40;
    sides.mr = make_resource_of_two(&fake_environment, &rs_mr_descriptor_fallback, first, second,
                                    NULL, &error);
    assert_non_null(sides.mr);
    return sides;
}

/* Bins hold chunks that nobody uses. */
TEST(free_chunks_of_the_first_go_back_before_falling_back)
{
    struct sides sides = start_pools(4 * MIB);
    struct rs_allocation small[16], large;

    for (unsigned i = 0; i < 16; i++)
        small[i] = take(&sides, MIB / 4);
    for (unsigned i = 0; i < 16; i++)
        give(&sides, &small[i]);
    large = take(&sides, 4 * MIB);
    assert_true(is_first(&sides, &large));
    give(&sides, &large);
    end(&sides);
}

TEST(held_memory_is_the_firsts)
{
    struct sides sides = start_pools(4 * MIB);
    struct rs_allocation first = take(&sides, 4 * MIB), second = take(&sides, MIB), none;

    give(&sides, &second);
    assert_int_equal(rs_mr_idle_bytes(sides.mr), sides.second->live_bytes);
    assert_int_equal(rs_mr_idle_bytes_best(sides.mr), 0);
    assert_int_equal(rs_mr_allocate_with(sides.mr, MIB, NULL, RS_EFFORT_HELD, &none),
                     CUDA_ERROR_NOT_READY);
    assert_int_equal(rs_mr_allocate_with(sides.mr, MIB, NULL, RS_EFFORT_BEST, &none),
                     CUDA_ERROR_NOT_READY);
    give(&sides, &first);
    assert_int_equal(rs_mr_idle_bytes_best(sides.mr), 4 * MIB);
    assert_int_equal(rs_mr_allocate_with(sides.mr, MIB, NULL, RS_EFFORT_HELD, &none), CUDA_SUCCESS);
    assert_true(is_first(&sides, &none));
    give(&sides, &none);
    assert_int_equal(rs_mr_allocate_with(sides.mr, MIB, NULL, RS_EFFORT_BEST, &none), CUDA_SUCCESS);
    give(&sides, &none);
    assert_true(rs_mr_trim(sides.mr, 0) > 0);
    assert_int_equal(sides.first->live_count + sides.second->live_count, 0);
    end(&sides);
}

/* A caller that may yet make room in the first, by waiting for freed blocks
 * (resource/reuse/allocation.c), is told so through whatever stands between, and the second is not
 * asked.
 */
TEST(the_best_is_asked_for_through_what_cuts_blocks)
{
    static const struct {
        const struct rs_mr_descriptor *descriptor;
        const char *options[4];
    } over[] = {
        {&rs_mr_descriptor_fixed_size, {"block_size=1MiB", "blocks_to_preallocate=4"}},
        {&rs_mr_descriptor_binning, {"minimum_size=1MiB", "maximum_size=2MiB"}},
        {&rs_mr_descriptor_binning, {NULL}},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(over); i++) {
        struct sides sides = start(64 * MIB, PLENTY);
        struct rs_mr *mr = make_resource_at(&fake_second_environment, over[i].descriptor, sides.mr,
                                            over[i].options, &(int){0});
        struct rs_allocation all = take(&sides, 64 * MIB), block;

        assert_non_null(mr);
        assert_int_equal(rs_mr_allocate_with(mr, MIB, NULL, RS_EFFORT_BEST, &block),
                         CUDA_ERROR_NOT_READY);
        assert_int_equal(sides.second->allocations, 0);
        give(&sides, &all);
        assert_int_equal(rs_mr_allocate_with(mr, MIB, NULL, RS_EFFORT_BEST, &block), CUDA_SUCCESS);
        assert_true(is_first(&sides, &block));
        assert_int_equal(rs_mr_deallocate(mr, &block, NULL), CUDA_SUCCESS);
        assert_true(rs_mr_trim(mr, 0) > 0 || over[i].options[0] == NULL);
        all = take(&sides, 64 * MIB);
        assert_true(is_first(&sides, &all));
        assert_int_equal(rs_mr_allocate(mr, MIB, NULL, &block), CUDA_SUCCESS);
        assert_false(is_first(&sides, &block));
        assert_int_equal(rs_mr_deallocate(mr, &block, NULL), CUDA_SUCCESS);
        give(&sides, &all);
        sides.mr = mr;
        end(&sides);
    }
}

/* A caller that can do with less rather has less of the first than more of the second. */
TEST(what_is_asked_ahead_takes_no_second)
{
    struct sides sides = start(100 * MIB, PLENTY);
    struct rs_allocation block, half;

    assert_int_equal(rs_mr_allocate_with(sides.mr, 128 * MIB, NULL, RS_EFFORT_AHEAD, &block),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(sides.second->allocations + sides.second->refusals, 0);
    half = take(&sides, 64 * MIB);
    assert_true(is_first(&sides, &half));
    block = take(&sides, 128 * MIB); /* the refusal of what could be done without says nothing */
    assert_int_equal(sides.first->refusals, 2);
    assert_false(is_first(&sides, &block));
    give(&sides, &block);
    /* The first is known to be full. */
    assert_int_equal(rs_mr_allocate_with(sides.mr, 128 * MIB, NULL, RS_EFFORT_AHEAD, &block),
                     CUDA_SUCCESS);
    assert_int_equal(sides.first->refusals, 2);
    assert_false(is_first(&sides, &block));
    give(&sides, &block);
    give(&sides, &half);
    end(&sides);
}

/* The driver's unit is no step: with less, each small request would have memory of its own. */
TEST(a_unit_that_is_asked_ahead_may_be_the_seconds)
{
    struct sides sides = start(MIB, PLENTY);
    struct rs_allocation block;

    assert_int_equal(
        rs_mr_allocate_with(sides.mr, RS_DRIVER_GRANULARITY, NULL, RS_EFFORT_AHEAD, &block),
        CUDA_SUCCESS);
    assert_false(is_first(&sides, &block));
    give(&sides, &block);
    /* Now the first is known to be full for what is asked ahead, and for nothing else. */
    assert_int_equal(rs_mr_allocate_with(sides.mr, 64 * MIB, NULL, RS_EFFORT_AHEAD, &block),
                     CUDA_SUCCESS);
    assert_int_equal(sides.first->refusals, 1);
    give(&sides, &block);
    block = take(&sides, 64 * MIB);
    assert_int_equal(sides.first->refusals, 2);
    give(&sides, &block);
    end(&sides);
}

TEST(a_pool_s_step_that_does_not_fit_the_first_is_made_smaller)
{
    struct sides sides = start(16384 * MIB + 100 * MIB, PLENTY), pool = sides;
    struct rs_allocation large, block;

    pool.mr = make_resource(&rs_mr_descriptor_pool, sides.mr, NULL);
    large = take(&pool, 16384 * MIB);
    block = take(&pool, 32 * MIB); /* a step of 1/128 is 128 MiB */
    assert_true(is_first(&pool, &block));
    assert_int_equal(sides.first->live_bytes, (16384 + 64) * MIB);
    assert_int_equal(sides.second->live_bytes, 0);
    give(&pool, &block);
    give(&pool, &large);
    end(&pool);
}

/* Where there is no second, the best is what there is: a refusal is final. */
TEST(without_a_second_a_refusal_is_final)
{
    static const struct rs_mr_descriptor *const over[] = {
        &rs_mr_descriptor_fixed_size, &rs_mr_descriptor_binning, &rs_mr_descriptor_arena};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(over); i++) {
        struct fake_leaf *leaf = fake_leaf_create(0);
        struct rs_mr *mr =
            make_resource_at(&fake_second_environment, over[i], &leaf->base, NULL, &(int){0});
        struct rs_allocation block;

        assert_non_null(mr);
        assert_int_equal(rs_mr_allocate_with(mr, MIB, NULL, RS_EFFORT_BEST, &block),
                         CUDA_ERROR_OUT_OF_MEMORY);
        rs_mr_destroy(mr, false);
    }
}

TEST(what_the_first_holds_serves_though_it_is_full)
{
    struct sides sides = start_pools(10 * MIB);
    struct rs_allocation held = take(&sides, 3 * MIB), pinned = take(&sides, 5 * MIB), large, again;

    large = take(&sides, 2 * MIB); /* refused: full */
    assert_false(is_first(&sides, &large));
    give(&sides, &held);
    again = take(&sides, 3 * MIB);
    assert_true(is_first(&sides, &again));
    give(&sides, &again);
    give(&sides, &large);
    give(&sides, &pinned);
    end(&sides);
}

/* ---- what a spill side counts as ---- */

static CUresult allocate_managed(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    (void)bytes;
    assert_int_equal(flags, CU_MEM_ATTACH_GLOBAL);
    *address = 0x40000000;
    return CUDA_SUCCESS;
}

static CUresult free_managed(CUdeviceptr address)
{
    assert_int_equal(address, 0x40000000);
    return CUDA_SUCCESS;
}

TEST(spilled_managed_memory_need_not_count_against_a_limit)
{
    static const char *const options[] = {"charged=1", "charged=0"};

    rs_driver =
        (struct rs_driver){.cuMemAllocManaged = allocate_managed, .cuMemFree_v2 = free_managed};
    for (unsigned i = 0; i < RS_ARRAY_LENGTH(options); i++) {
        enum rs_memory memory = i == 0 ? RS_MEMORY_MANAGED : RS_MEMORY_HOST;
        struct rs_account account;
        struct rs_environment environment = {.account = &account};
        struct rs_allocation small, large;
        struct rs_mr *mr;
        int error;

        rs_account_begin(&account, NULL);
        account.limit_bytes = 4 * MIB;
        mr = make_resource_at(&environment, &rs_mr_descriptor_managed, NULL, OPTIONS(options[i]),
                              &error);
        assert_int_equal(rs_mr_allocate(mr, 3 * MIB, NULL, &small), CUDA_SUCCESS);
        assert_int_equal(account.held_bytes[memory], 3 * MIB);
        assert_int_equal(account.charged_bytes, i == 0 ? 4 * MIB : 0);
        assert_int_equal(rs_mr_deallocate(mr, &small, NULL), CUDA_SUCCESS);
        assert_int_equal(rs_mr_allocate(mr, 5 * MIB, NULL, &large),
                         i == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS);
        if (i == 1)
            assert_int_equal(rs_mr_deallocate(mr, &large, NULL), CUDA_SUCCESS);
        assert_int_equal(account.held_bytes[memory], 0);
        assert_int_equal(account.charged_bytes, 0);
        rs_mr_destroy(mr, false);
    }
}

/* ---- threads ---- */

enum { THREADS = 8, ROUNDS = 4000, LIVE = 16 };

static void *work(void *data)
{
    struct sides *sides = data;
    struct rs_allocation live[LIVE] = {{0}};
    uint64_t seed = (uint64_t)(uintptr_t)&live;
    uintptr_t errors = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct rs_allocation *block = &live[test_random(&seed) % LIVE];
        if (block->size_bytes) {
            errors += rs_mr_deallocate(sides->mr, block, NULL) != CUDA_SUCCESS;
            block->size_bytes = 0;
        } else {
            errors += rs_mr_allocate(sides->mr, 1 + test_random(&seed) % MIB, NULL, block) !=
                      CUDA_SUCCESS;
        }
    }
    for (unsigned i = 0; i < LIVE; i++)
        if (live[i].size_bytes)
            errors += rs_mr_deallocate(sides->mr, &live[i], NULL) != CUDA_SUCCESS;
    return (void *)errors;
}

TEST(threads_lose_nothing)
{
    struct sides sides = start(MIB, PLENTY); /* less than one thread uses */
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work, &sides), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *errors;
        pthread_join(threads[i], &errors);
        assert_null(errors);
    }
    assert_true(counter(&sides, "fallbacks") > 0);
    assert_int_equal(counter(&sides, "live_first") + counter(&sides, "live_second"), 0);
    assert_int_equal(counter(&sides, "live_first_blocks"), 0);
    assert_int_equal(sides.first->live_count + sides.second->live_count, 0);
    end(&sides);
}

/* ---- what is asked of both sides ---- */

static CUdevice told[2];
static CUresult access_answer;

static CUresult first_is_told(struct rs_mr *mr, CUdevice peer, bool allowed)
{
    (void)mr;
    told[0] = allowed ? peer : -peer;
    return access_answer;
}

static CUresult second_is_told(struct rs_mr *mr, CUdevice peer, bool allowed)
{
    (void)mr;
    told[1] = allowed ? peer : -peer;
    return CUDA_SUCCESS;
}

TEST(both_sides_are_told_of_peers)
{
    struct sides sides = start(PLENTY, PLENTY);

    sides.first->base.ops.access_changed = first_is_told;
    sides.second->base.ops.access_changed = second_is_told;
    assert_int_equal(rs_mr_access_changed(sides.mr, 3, true), CUDA_SUCCESS);
    assert_true(told[0] == 3 && told[1] == 3);
    access_answer = CUDA_ERROR_NOT_SUPPORTED;
    assert_int_equal(rs_mr_access_changed(sides.mr, 3, false), CUDA_ERROR_NOT_SUPPORTED);
    assert_true(told[0] == -3 && told[1] == 3);
    end(&sides);
}

static size_t three_blocks(struct rs_mr *mr)
{
    (void)mr;
    return 3;
}

static size_t five_blocks(struct rs_mr *mr)
{
    (void)mr;
    return 5;
}

TEST(free_blocks_of_both_sides_are_summed)
{
    struct sides sides = start(PLENTY, PLENTY);

    sides.first->base.ops.free_blocks = three_blocks;
    sides.second->base.ops.free_blocks = five_blocks;
    assert_int_equal(rs_mr_free_blocks(sides.mr), 8);
    end(&sides);
}
