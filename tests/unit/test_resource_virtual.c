/* SPDX-License-Identifier: Apache-2.0 */
/* virtual over a fake of the driver's virtual memory management: free memory is never too
 * scattered, live memory never moves, and whatever fails, nothing is lost. */
#include "unit.h"

#include "base/request.h"
#include "fake_leaf.h"
#include "fake_vmm.h"
#include "host_memory.h"
#include "resource/report.h"
#include "resource/segment.h"
#include "resource/unfinished.h"

#include "driver/driver.h"
#include "driver/fence.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* ---- waits that end at once, on a clock that says they did not ---- */

#define SECOND_NS ((uint64_t)1000000000)

static atomic_bool time_flies;
static _Atomic uint64_t clock_ahead_ns;

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __real_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = __real_clock_gettime(clock, now);
    uint64_t ns = (uint64_t)now->tv_nsec + atomic_load(&clock_ahead_ns);

    now->tv_sec += (time_t)(ns / SECOND_NS);
    now->tv_nsec = (long)(ns % SECOND_NS);
    return result;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    struct timespec now, real = *until;
    uint64_t ahead_ns = atomic_load(&clock_ahead_ns);

    clock_gettime(CLOCK_MONOTONIC, &now);
    if (atomic_load(&time_flies)) {
        atomic_fetch_add(&clock_ahead_ns,
                         (uint64_t)((int64_t)(until->tv_sec - now.tv_sec) * (int64_t)SECOND_NS +
                                    until->tv_nsec - now.tv_nsec));
        return ETIMEDOUT;
    }
    real.tv_sec -= (time_t)(ahead_ns / SECOND_NS);
    real.tv_nsec -= (long)(ahead_ns % SECOND_NS);
    if (real.tv_nsec < 0) {
        real.tv_sec--;
        real.tv_nsec += (long)SECOND_NS;
    }
    return __real_pthread_cond_timedwait(condition, mutex, &real);
}

/* ---- the resource under test ---- */

static struct rs_account account;
static struct rs_environment environment;

static size_t live_meanwhile;
static unsigned looks;

static struct rs_mr *make(size_t capacity_bytes, const char *const *options)
{
    struct rs_mr *mr;
    int error;

    fake_vmm_install(capacity_bytes);
    account = (struct rs_account){.device = NULL};
    environment = (struct rs_environment){.total_bytes = 80 * GIB,
                                          .first_on_device = true,
                                          .frees_are_ready = true,
                                          .account = &account};
    mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL, options, &error);
    assert_non_null(mr);
    return mr;
}

static void end(struct rs_mr *mr)
{
    assert_true(rs_mr_check(mr));
    rs_mr_destroy(mr, false);
    assert_true(fake_vmm_is_clean());
    assert_int_equal(rs_account_held_bytes(&account), 0);
}

static void assert_good(struct rs_mr *mr)
{
    assert_true(rs_mr_check(mr));
    assert_int_equal(fake_vmm.wrong_calls, 0);
    assert_int_equal(rs_account_held_bytes(&account), fake_vmm.created_bytes);
}

static CUresult try_take(struct rs_mr *mr, size_t size_bytes, struct rs_allocation *out)
{
    CUresult result = rs_mr_allocate(mr, size_bytes, NULL, out);
    struct rs_segment segment;

    if (result != CUDA_SUCCESS)
        return result;
    assert_int_equal(out->size_bytes, size_bytes);
    assert_int_equal(out->address % RS_BLOCK_ALIGNMENT, 0);
    assert_true(fake_vmm_is_usable(out->address, size_bytes));
    assert_true(rs_segment_find(out->address, &segment));
    fake_vmm_watch(out->address, size_bytes, true);
    return result;
}

static struct rs_allocation take(struct rs_mr *mr, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(try_take(mr, size_bytes, &allocation), CUDA_SUCCESS);
    assert_good(mr);
    return allocation;
}

static void give(struct rs_mr *mr, const struct rs_allocation *allocation)
{
    fake_vmm_watch(allocation->address, allocation->size_bytes, false);
    assert_int_equal(rs_mr_deallocate(mr, allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(mr));
}

static void refuse(struct rs_mr *mr, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(mr, size_bytes, NULL, &allocation), CUDA_ERROR_OUT_OF_MEMORY);
    assert_good(mr);
}

static uint64_t counter(struct rs_mr *mr, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    mr->ops.report(mr, &report);
    value = rs_report_value(&report, "virtual", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

/* ---- large blocks ---- */

enum { BLOCKS_MAX = 64 };

static void take_many(struct rs_mr *mr, struct rs_allocation *blocks, size_t count,
                      size_t size_bytes, struct rs_allocation *walls)
{
    for (size_t i = 0; i < count; i++) {
        blocks[i] = take(mr, size_bytes);
        if (walls)
            walls[i] = take(mr, 32 * MIB);
    }
}

static void give_many(struct rs_mr *mr, const struct rs_allocation *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        give(mr, &blocks[i * 7 % count]);
}

TEST(ten_gibibytes_are_cut_and_merged_at_will)
{
    struct rs_mr *mr = make(10 * GIB, NULL);
    struct rs_allocation blocks[BLOCKS_MAX];
    uint64_t creations;

    take_many(mr, blocks, 10, GIB, NULL);
    creations = fake_vmm.creations;
    give_many(mr, blocks, 10);
    take_many(mr, blocks, 20, GIB / 2, NULL);
    give_many(mr, blocks, 20);
    take_many(mr, blocks, 5, 2 * GIB, NULL);
    refuse(mr, 1);
    give_many(mr, blocks, 5);
    assert_int_equal(fake_vmm.creations, creations);
    assert_int_equal(fake_vmm.unmappings, 0); /* all of it lay side by side */
    end(mr);
}

/* A live granule lies between any two blocks. */
TEST(scattered_gibibytes_are_moved_together)
{
    struct rs_mr *mr = make(10 * GIB + 10 * 32 * MIB, NULL);
    struct rs_allocation blocks[BLOCKS_MAX], walls[BLOCKS_MAX], one;
    uint64_t creations;

    take_many(mr, blocks, 10, GIB, walls);
    creations = fake_vmm.creations;
    give_many(mr, blocks, 10);
    take_many(mr, blocks, 20, GIB / 2, NULL);
    give_many(mr, blocks, 20);
    take_many(mr, blocks, 5, 2 * GIB, NULL);
    give_many(mr, blocks, 5);
    one = take(mr, 9 * GIB);
    give(mr, &one);
    assert_int_equal(fake_vmm.creations, creations);
    assert_true(counter(mr, "moved") > 9 * GIB);
    give_many(mr, walls, 10);
    end(mr);
}

TEST(held_memory_is_moved_without_new_memory_or_not_at_all)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation first = take(mr, 64 * MIB), wall = take(mr, 512);
    struct rs_allocation second = take(mr, 64 * MIB), wall2 = take(mr, 512), moved;
    uint64_t creations = fake_vmm.creations;

    give(mr, &first);
    give(mr, &second);
    assert_int_equal(rs_mr_allocate_held(mr, 200 * MIB, NULL, &moved), CUDA_ERROR_NOT_READY);
    assert_good(mr);
    assert_int_equal(rs_mr_allocate_held(mr, 100 * MIB, NULL, &moved), CUDA_SUCCESS);
    assert_true(fake_vmm_is_usable(moved.address, 100 * MIB));
    assert_good(mr);
    assert_int_equal(fake_vmm.creations, creations);
    give(mr, &moved);
    give(mr, &wall);
    give(mr, &wall2);
    end(mr);
}

TEST(growth_continues_the_free_end)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation first = take(mr, 16 * MIB), second = take(mr, 40 * MIB);

    assert_int_equal(second.address, first.address + 16 * MIB);
    assert_int_equal(fake_vmm.created_bytes, 64 * MIB);
    assert_int_equal(fake_vmm.unmappings, 0);
    give(mr, &first);
    give(mr, &second);
    end(mr);
}

TEST(what_is_missing_is_created_and_the_rest_moved)
{
    struct rs_mr *mr = make(GIB, OPTIONS("granularity=2MiB"));
    struct rs_allocation first = take(mr, 6 * MIB), wall = take(mr, 2 * MIB), large;

    give(mr, &first);
    large = take(mr, 20 * MIB);
    assert_int_equal(fake_vmm.created_bytes, 22 * MIB);
    assert_int_equal(counter(mr, "moved"), 6 * MIB);
    give(mr, &large);
    give(mr, &wall);
    end(mr);
}

TEST(scattered_addresses_are_no_shortage_either)
{
    struct rs_mr *mr = NULL;
    struct rs_allocation blocks[16], large;

    fake_vmm_install(GIB);
    environment = (struct rs_environment){.total_bytes = 16 * 2 * MIB, .frees_are_ready = true};
    account = (struct rs_account){.device = NULL};
    environment.account = &account;
    {
        int error;
        mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL,
                              OPTIONS("granularity=2MiB", "reserve=1"), &error);
    }
    for (size_t i = 0; i < 16; i++)
        blocks[i] = take(mr, 2 * MIB);
    for (size_t i = 0; i < 16; i += 2)
        give(mr, &blocks[i]);
    large = take(mr, 16 * MIB);
    assert_int_equal(fake_vmm.reservations, 2);
    assert_int_equal(fake_vmm.created_bytes, 32 * MIB);
    give(mr, &large);
    for (size_t i = 1; i < 16; i += 2)
        give(mr, &blocks[i]);
    end(mr);
}

TEST(large_blocks_are_aligned)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation small = take(mr, 512), large = take(mr, MIB + 512), next = take(mr, 512);

    assert_int_equal(large.address % (64 * KIB), 0);
    give(mr, &large);
    give(mr, &small);
    give(mr, &next);
    end(mr);
}

/* ---- sizes ---- */

TEST(the_initial_size_is_there_and_stays)
{
    struct rs_mr *mr = make(GIB, OPTIONS("initial_size=100MiB"));
    struct rs_allocation block;

    assert_int_equal(fake_vmm.created_bytes, 128 * MIB);
    block = take(mr, 300 * MIB);
    give(mr, &block);
    assert_int_equal(rs_mr_idle_bytes(mr), fake_vmm.created_bytes);
    assert_true(rs_mr_trim(mr, 0) > 0);
    assert_good(mr);
    assert_int_equal(fake_vmm.created_bytes, 128 * MIB);
    end(mr);
}

TEST(an_initial_size_larger_than_what_is_free_starts_smaller)
{
    struct rs_mr *mr = make(300 * MIB, OPTIONS("initial_size=1GiB"));

    assert_int_equal(fake_vmm.created_bytes, 256 * MIB);
    end(mr);
}

/* All that is charged and not live, as another thread sees it that is refused meanwhile. */
static void look_at_what_goes_back(void)
{
    size_t seen_bytes = atomic_load(&account.returning_bytes) + atomic_load(&account.asked_bytes);

    assert_true(seen_bytes >= atomic_load(&account.charged_bytes) - live_meanwhile);
    looks++;
}

TEST(what_a_trim_has_in_hand_is_seen)
{
    struct rs_mr *mr = make(GIB, OPTIONS("granularity=2MiB"));
    struct rs_allocation kept = take(mr, 32 * MIB), freed = take(mr, 64 * MIB);

    give(mr, &freed);
    looks = 0;
    live_meanwhile = 32 * MIB;
    fake_vmm.on_release = look_at_what_goes_back;
    assert_int_equal(rs_mr_trim(mr, 0), 64 * MIB);
    assert_int_equal(looks, 32);
    assert_int_equal(atomic_load(&account.returning_bytes), 0);
    fake_vmm.on_release = NULL;
    give(mr, &kept);
    end(mr);
}

/* Of a block whose granules are not all to be had those that came go back. */
TEST(what_was_created_in_vain_is_seen)
{
    struct rs_mr *mr = make(64 * MIB, OPTIONS("granularity=2MiB"));
    struct rs_allocation kept = take(mr, 32 * MIB), refused;

    looks = 0;
    live_meanwhile = 32 * MIB;
    fake_vmm.on_release = look_at_what_goes_back;
    assert_int_equal(rs_mr_allocate(mr, 48 * MIB, NULL, &refused), CUDA_ERROR_OUT_OF_MEMORY);
    assert_true(looks > 0);
    assert_int_equal(atomic_load(&account.asked_bytes), 0);
    assert_int_equal(atomic_load(&account.charged_bytes), 32 * MIB);
    fake_vmm.on_release = NULL;
    give(mr, &kept);
    end(mr);
}

TEST(trim_keeps_what_it_is_told_to)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation low = take(mr, 512), block = take(mr, 320 * MIB), high = take(mr, 512);
    size_t created_bytes = fake_vmm.created_bytes, trimmed_bytes;

    give(mr, &block);
    assert_int_equal(rs_mr_trim(mr, SIZE_MAX), 0);
    trimmed_bytes = rs_mr_trim(mr, 97 * MIB);
    assert_int_equal(trimmed_bytes, created_bytes - fake_vmm.created_bytes);
    assert_good(mr);
    assert_in_range(rs_mr_idle_bytes(mr), 128 * MIB, 128 * MIB + 64 * MIB);
    (void)rs_mr_trim(mr, 0);
    assert_good(mr);
    assert_in_range(fake_vmm.created_bytes, 32 * MIB, 64 * MIB); /* where live blocks are */
    assert_true(fake_vmm_is_usable(low.address, 512));
    assert_true(fake_vmm_is_usable(high.address, 512));
    give(mr, &low);
    give(mr, &high);
    (void)rs_mr_trim(mr, 0);
    assert_int_equal(fake_vmm.created_bytes, 0);
    low = take(mr, 100 * MIB);
    give(mr, &low);
    end(mr);
}

TEST(the_maximum_and_the_limit_are_kept)
{
    struct rs_mr *mr = make(GIB, OPTIONS("maximum_size=100MiB", "granularity=32MiB"));
    struct rs_allocation block = take(mr, 90 * MIB), other;

    refuse(mr, 7 * MIB);
    other = take(mr, 6 * MIB);
    assert_int_equal(fake_vmm.peak_bytes, 96 * MIB);
    give(mr, &block);
    give(mr, &other);
    (void)rs_mr_trim(mr, 0);
    atomic_store(&account.limit_bytes, 64 * MIB);
    refuse(mr, 65 * MIB);
    assert_int_equal(fake_vmm.created_bytes, 0); /* what was created for it went back */
    other = take(mr, 64 * MIB);
    give(mr, &other);
    end(mr);
}

static size_t granularity_at(size_t total_bytes, size_t limit_bytes, size_t device_bytes,
                             const char *maximum)
{
    struct rs_allocation block;
    struct rs_mr *mr;
    size_t bytes;
    int error;

    fake_vmm_install(GIB);
    fake_vmm.granularity_bytes = device_bytes;
    account = (struct rs_account){.device = NULL};
    atomic_store(&account.limit_bytes, limit_bytes);
    environment = (struct rs_environment){
        .total_bytes = total_bytes, .frees_are_ready = true, .account = &account};
    mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL, OPTIONS(maximum), &error);
    assert_non_null(mr);
    block = take(mr, 1);
    bytes = fake_vmm.created_bytes;
    give(mr, &block);
    end(mr);
    return bytes;
}

TEST(the_granularity_follows_the_size)
{
    assert_int_equal(granularity_at(80 * GIB, 0, 2 * MIB, NULL), 32 * MIB);
    assert_int_equal(granularity_at(40 * GIB, 0, 2 * MIB, NULL), 16 * MIB);
    assert_int_equal(granularity_at(8 * GIB, 0, 2 * MIB, NULL), 4 * MIB);
    assert_int_equal(granularity_at(64 * MIB, 0, 2 * MIB, NULL), 2 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 16 * GIB, 2 * MIB, NULL), 8 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 34 * MIB, 2 * MIB, NULL), 2 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 0, 2 * MIB, "maximum_size=8GiB"), 4 * MIB);
    assert_int_equal(granularity_at(80 * GIB, 0, 64 * MIB, NULL), 64 * MIB);
}

TEST(no_size_wraps)
{
    static const size_t huge[] = {SIZE_MAX,     SIZE_MAX - 511, SIZE_MAX - 512,
                                  SIZE_MAX / 2, SIZE_MAX - 1,   (size_t)1 << 50,
                                  81 * GIB,     80 * GIB + 1,   SIZE_MAX - 32 * MIB};
    struct rs_mr *mr = make(80 * GIB, NULL);
    struct rs_allocation block = take(mr, 5000);

    for (size_t i = 0; i < RS_ARRAY_LENGTH(huge); i++)
        refuse(mr, huge[i]);
    assert_int_equal(fake_vmm.created_bytes, 32 * MIB);
    give(mr, &block);
    end(mr);
}

static bool are_valid(const struct rs_environment *at, const char *const *options,
                      const char *expected)
{
    char line[300];
    bool valid = options_are_valid(&rs_mr_descriptor_virtual, at, options, line, sizeof(line));

    if (expected)
        assert_non_null(strstr(line, expected));
    return valid;
}

TEST(bad_settings_are_one_clear_line)
{
    fake_vmm_install(GIB);
    environment = (struct rs_environment){.total_bytes = 80 * GIB};
    assert_true(are_valid(&environment, NULL, NULL));
    assert_true(are_valid(NULL, NULL, NULL));
    assert_false(are_valid(NULL, OPTIONS("granularity=48MiB"), "power of two"));
    assert_false(are_valid(NULL, OPTIONS("granularity=1MiB"), "granularity"));
    assert_false(are_valid(NULL, OPTIONS("maximum_size=1MiB"), "below the granularity"));
    assert_false(are_valid(NULL, OPTIONS("maximum_size=16MiB", "granularity=32MiB"),
                           "below the granularity"));
    assert_false(
        are_valid(NULL, OPTIONS("maximum_size=64MiB", "initial_size=65MiB"), "initial size"));
    assert_false(are_valid(NULL, OPTIONS("initial_size=1000"), "256"));
    assert_false(are_valid(&environment, OPTIONS("initial_size=81GiB"), "larger than the device"));
    environment.total_bytes = 16 * MIB;
    assert_true(are_valid(&environment, NULL, NULL));
    assert_false(are_valid(&environment, OPTIONS("granularity=32MiB"), "larger than the device"));
    environment.total_bytes = 80 * GIB;
    fake_vmm.granularity_bytes = 64 * MIB;
    assert_true(are_valid(&environment, NULL, NULL));
    assert_false(
        are_valid(&environment, OPTIONS("granularity=32MiB"), "multiple of the device's own"));
    fake_vmm.is_supported = false;
    assert_false(are_valid(&environment, NULL, "virtual memory management"));
    fake_vmm_install(GIB);
    rs_driver.cuMemMap = NULL;
    assert_false(are_valid(&environment, NULL, "virtual memory management"));
}

/* ---- who may still use what is moved ---- */

static struct {
    bool is_busy;
    unsigned events, recorded;
    CUresult record_answer;
} fences;

static CUresult fake_event_create(CUevent *event, unsigned flags)
{
    (void)flags;
    fences.events++;
    *event = (CUevent)(uintptr_t)0x5000;
    return CUDA_SUCCESS;
}

static CUresult fake_event_destroy(CUevent event)
{
    (void)event;
    fences.events--;
    return CUDA_SUCCESS;
}

static CUresult fake_event_record(CUcontext context, CUevent event)
{
    (void)context;
    (void)event;
    fences.recorded++;
    return fences.record_answer;
}

static CUresult fake_event_query(CUevent event)
{
    (void)event;
    return fences.is_busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* No `reuse` is above.  128 MiB are held and free, in two pieces. */
static struct rs_mr *make_unclean(size_t capacity_bytes, struct rs_allocation *wall)
{
    struct rs_mr *mr = make(capacity_bytes, OPTIONS("granularity=32MiB"));
    struct rs_allocation first = take(mr, 64 * MIB), second;

    *wall = take(mr, 32 * MIB);
    second = take(mr, 64 * MIB);
    rs_driver.cuEventCreate = fake_event_create;
    rs_driver.cuEventDestroy_v2 = fake_event_destroy;
    rs_driver.cuEventQuery = fake_event_query;
    rs_driver.cuCtxRecordEvent = fake_event_record;
    memset(&fences, 0, sizeof(fences));
    environment.frees_are_ready = false;
    give(mr, &first);
    give(mr, &second);
    return mr;
}

static void end_unclean(struct rs_mr *mr, const struct rs_allocation *wall)
{
    assert_int_equal(fake_vmm.waits, 0);
    assert_int_equal(fences.events, 0);
    give(mr, wall);
    end(mr);
}

TEST(without_reuse_memory_moves_when_all_work_is_done)
{
    struct rs_allocation wall, block;
    struct rs_mr *mr = make_unclean(160 * MIB, &wall);

    assert_int_equal(fences.recorded, 0);
    block = take(mr, 128 * MIB);
    assert_int_equal(fences.recorded, 1);
    assert_true(fake_vmm.unmappings > 0);
    give(mr, &block);
    assert_true(rs_mr_trim(mr, 0) > 0);
    assert_int_equal(fences.recorded, 2);
    end_unclean(mr, &wall);
}

/* What is new needs no move, and a request that only a move would serve waits, but not for ever. */
TEST(without_reuse_no_request_waits_without_end_for_work)
{
    struct rs_allocation wall, block;
    struct rs_mr *mr = make_unclean(288 * MIB, &wall);
    uint64_t begin_ns;

    fences.is_busy = true;
    block = take(mr, 128 * MIB);
    assert_int_equal(fake_vmm.created_bytes, 224 * MIB);
    give(mr, &block);
    fake_vmm.capacity_bytes = fake_vmm.created_bytes;
    assert_int_equal(rs_mr_trim(mr, 0), 0);
    assert_int_equal(rs_mr_allocate_held(mr, 192 * MIB, NULL, &block), CUDA_ERROR_NOT_READY);
    begin_ns = atomic_load(&clock_ahead_ns);
    atomic_store(&time_flies, true);
    refuse(mr, 192 * MIB);
    atomic_store(&time_flies, false);
    assert_in_range(atomic_load(&clock_ahead_ns) - begin_ns, 10 * SECOND_NS, 16 * SECOND_NS);
    assert_int_equal(fake_vmm.unmappings, 0);
    fences.is_busy = false;
    block = take(mr, 192 * MIB);
    give(mr, &block);
    end_unclean(mr, &wall);
}

/* An old driver, or a capture, which may be of this thread's. */
TEST(without_reuse_nothing_moves_where_nobody_can_know)
{
    struct rs_allocation wall, block;
    struct rs_mr *mr = make_unclean(160 * MIB, &wall);
    uint64_t ahead_ns = atomic_load(&clock_ahead_ns);

    fences.record_answer = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    atomic_store(&time_flies, true);
    refuse(mr, 128 * MIB);
    rs_driver.cuCtxRecordEvent = NULL;
    refuse(mr, 128 * MIB);
    atomic_store(&time_flies, false);
    assert_int_equal(atomic_load(&clock_ahead_ns), ahead_ns); /* at once */
    assert_int_equal(fake_vmm.unmappings, 0);
    block = take(mr, 64 * MIB);
    give(mr, &block);
    end_unclean(mr, &wall);
}

TEST(other_devices_reach_all_of_it)
{
    enum { BLOCKS = 20, FIRST = 5, SECOND = 63 };
    static _Atomic uint64_t peers;
    struct rs_mr *mr = make(25 * GIB, NULL);
    struct rs_allocation blocks[BLOCKS], later;

    peers = 0;
    environment.peers = &peers;
    take_many(mr, blocks, BLOCKS, GIB, NULL);
    give(mr, &blocks[3]);
    assert_false(fake_vmm_is_usable_by(FIRST, blocks[0].address, 1));
    peers |= 1ull << FIRST;
    assert_int_equal(rs_mr_access_changed(mr, FIRST, true), CUDA_SUCCESS);
    blocks[3] = take(mr, GIB);
    later = take(mr, 2 * GIB);
    peers |= 1ull << SECOND;
    assert_int_equal(rs_mr_access_changed(mr, SECOND, true), CUDA_SUCCESS);
    for (size_t i = 0; i < BLOCKS; i++)
        assert_true(fake_vmm_is_usable_by(FIRST, blocks[i].address, GIB) &&
                    fake_vmm_is_usable_by(SECOND, blocks[i].address, GIB) &&
                    fake_vmm_is_usable(blocks[i].address, GIB));
    assert_true(fake_vmm_is_usable_by(FIRST, later.address, 2 * GIB));
    assert_good(mr);

    peers &= ~(1ull << FIRST);
    assert_int_equal(rs_mr_access_changed(mr, FIRST, false), CUDA_SUCCESS);
    give(mr, &later);
    later = take(mr, 3 * GIB);
    assert_false(fake_vmm_is_usable_by(FIRST, blocks[0].address, 1));
    assert_false(fake_vmm_is_usable_by(FIRST, later.address + 3 * GIB - 1, 1));
    assert_true(fake_vmm_is_usable_by(SECOND, later.address, 3 * GIB));

    fake_vmm.fail_at = 1;
    fake_vmm.fail_with = CUDA_ERROR_NOT_SUPPORTED;
    assert_int_equal(rs_mr_access_changed(mr, FIRST, true), CUDA_ERROR_NOT_SUPPORTED);
    give(mr, &later); /* and goes on */
    later = take(mr, 3 * GIB);
    give(mr, &later);
    give_many(mr, blocks, BLOCKS);
    rs_mr_context_ended(mr);
    assert_int_equal(rs_mr_access_changed(mr, FIRST, true), CUDA_SUCCESS); /* nothing is there */
    end(mr);
}

static void nothing_moves(void *data)
{
    struct rs_allocation block;

    assert_int_equal(rs_mr_trim(data, 0), 0);
    assert_int_equal(rs_mr_allocate_held(data, 3 * GIB, NULL, &block), CUDA_ERROR_NOT_READY);
}

/* What is mapped while all mappings are told is what was mapped before. */
TEST(nothing_moves_while_access_changes)
{
    struct rs_mr *mr = make(10 * GIB, NULL);
    struct rs_allocation blocks[5], walls[5], large;
    uint64_t calls;

    take_many(mr, blocks, 5, GIB, walls);
    give_many(mr, blocks, 5);
    fake_vmm.on_access = nothing_moves;
    fake_vmm.on_access_data = mr;
    calls = fake_vmm.unmappings;
    assert_int_equal(rs_mr_access_changed(mr, 3, true), CUDA_SUCCESS);
    assert_int_equal(fake_vmm.unmappings, calls);
    fake_vmm.on_access = NULL;
    assert_int_equal(rs_mr_allocate_held(mr, 3 * GIB, NULL, &large), CUDA_SUCCESS);
    assert_true(fake_vmm.unmappings > calls); /* they were there to be moved */
    assert_int_equal(rs_mr_deallocate(mr, &large, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_trim(mr, 0) > 0);
    give_many(mr, walls, 5);
    end(mr);
}

TEST(the_end_of_the_context_gives_all_back_at_once)
{
    struct rs_mr *mr = make(GIB, OPTIONS("initial_size=64MiB"));
    struct rs_allocation live = take(mr, 100 * MIB), freed = take(mr, 20 * MIB), none;
    struct rs_segment segment;
    uint64_t calls;

    give(mr, &freed);
    fake_vmm_watch(live.address, live.size_bytes, false);
    rs_mr_context_ended(mr);
    assert_true(fake_vmm_is_clean());
    assert_int_equal(rs_account_held_bytes(&account), 0);
    assert_false(rs_segment_find(live.address, &segment));
    calls = fake_vmm.calls;
    assert_int_equal(rs_mr_allocate(mr, 512, NULL, &none), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_int_equal(rs_mr_allocate_held(mr, 512, NULL, &none), CUDA_ERROR_NOT_READY);
    assert_int_equal(rs_mr_deallocate(mr, &live, NULL), CUDA_SUCCESS);
    assert_int_equal(rs_mr_trim(mr, 0), 0);
    rs_mr_destroy(mr, true);
    assert_int_equal(fake_vmm.calls, calls);
}

TEST(destroyed_with_its_memory_gone_it_calls_nobody)
{
    struct rs_mr *mr = make(GIB, NULL);
    uint64_t calls;

    (void)take(mr, 1000);
    calls = fake_vmm.calls;
    rs_mr_destroy(mr, true);
    assert_int_equal(fake_vmm.calls, calls);
}

static void end_context(void *mr)
{
    rs_mr_context_ended(mr);
}

TEST(a_growth_that_the_end_overtakes_gives_back_too)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation none;

    fake_vmm.on_call = end_context;
    fake_vmm.on_call_data = mr;
    assert_int_equal(rs_mr_allocate(mr, 100 * MIB, NULL, &none), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    assert_int_equal(fake_vmm.creations, 4);
    assert_true(fake_vmm_is_clean());
    assert_int_equal(rs_account_held_bytes(&account), 0);
    rs_mr_destroy(mr, true);
}

/* Whichever call fails then: 1 unmapping, 4 granules, which are asked for twice, the addresses. The
 * account has ended with the context. */
TEST(what_the_end_could_not_give_back_goes_back_later)
{
    for (uint64_t at = 1; at <= 7; at++) {
        struct rs_mr *mr = make(GIB, NULL);
        struct rs_allocation block = take(mr, 100 * MIB);

        fake_vmm_watch(block.address, block.size_bytes, false);
        fake_vmm.fail_at = at;
        fake_vmm.fail_with = CUDA_ERROR_UNKNOWN;
        rs_mr_context_ended(mr);
        assert_int_equal(fake_vmm_is_clean(), at != 1 && at != 6);
        rs_account_lose(&account);
        rs_unfinished_retry();
        assert_true(fake_vmm_is_clean());
        assert_int_equal(rs_account_held_bytes(&account), 0);
        rs_mr_destroy(mr, true);
    }
}

TEST(destroyed_it_is_tried_no_more)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation block = take(mr, 100 * MIB);
    uint64_t calls;

    fake_vmm_watch(block.address, block.size_bytes, false);
    fake_vmm.fail_at = 1;
    fake_vmm.fail_with = CUDA_ERROR_UNKNOWN;
    rs_mr_context_ended(mr);
    rs_mr_destroy(mr, true);
    calls = fake_vmm.calls;
    rs_unfinished_retry();
    assert_int_equal(fake_vmm.calls, calls);
}

/* ---- failures ---- */

/* 4 granules of 32 MiB that the driver would neither make usable nor unmap. */
static struct rs_mr *make_stuck(void)
{
    struct rs_mr *mr = make(GIB, NULL);
    struct rs_allocation none;

    fake_vmm.fail_at = 4 + 4 + 1; /* creations, mappings, access; and what undoes them */
    fake_vmm.fails_from_then_on = true;
    fake_vmm.fail_with = CUDA_ERROR_UNKNOWN;
    assert_int_equal(rs_mr_allocate(mr, 100 * MIB, NULL, &none), CUDA_ERROR_UNKNOWN);
    assert_int_equal(fake_vmm.mappings, 4);
    assert_int_equal(rs_mr_trim(mr, 0), 0);
    assert_int_equal(fake_vmm.mappings, 4);
    assert_good(mr);
    fake_vmm.fail_at = 0;
    return mr;
}

TEST(a_trim_gives_back_what_was_stuck)
{
    struct rs_mr *mr = make_stuck();

    assert_int_equal(rs_mr_trim(mr, 0), 128 * MIB);
    assert_good(mr);
    assert_int_equal(fake_vmm.created_bytes, 0);
    end(mr);
}

TEST(a_growth_uses_what_was_stuck)
{
    struct rs_mr *mr = make_stuck();
    struct rs_allocation block = take(mr, 128 * MIB);

    assert_int_equal(fake_vmm.creations, 4);
    assert_good(mr);
    give(mr, &block);
    end(mr);
}

/* Growth, a move with creation, a trim: every driver call there is.  What fails says so and costs
 * nothing that was live. */
static void use_everything(CUresult expected)
{
    static const size_t sizes[] = {1000, 100 * MIB, 512, 64 * MIB, 512, 512};
    struct rs_allocation live[RS_ARRAY_LENGTH(sizes)], large;
    bool is_live[RS_ARRAY_LENGTH(sizes)];
    struct rs_mr *mr;
    CUresult result;
    int error;

    environment.account = &account;
    mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL,
                          OPTIONS("initial_size=32MiB"), &error);
    if (!mr)
        return;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i++) {
        result = try_take(mr, sizes[i], &live[i]);
        is_live[i] = result == CUDA_SUCCESS;
        assert_true(is_live[i] || result == expected);
        assert_good(mr);
    }
    for (size_t i = 1; i < RS_ARRAY_LENGTH(sizes); i += 2)
        if (is_live[i])
            give(mr, &live[i]);
    result = try_take(mr, 190 * MIB, &large);
    assert_true(result == CUDA_SUCCESS || result == expected);
    assert_good(mr);
    if (result == CUDA_SUCCESS)
        give(mr, &large);
    (void)rs_mr_trim(mr, 40 * MIB);
    assert_good(mr);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(sizes); i += 2)
        if (is_live[i]) {
            assert_true(fake_vmm_is_usable(live[i].address, sizes[i]));
            give(mr, &live[i]);
        }
    (void)rs_mr_trim(mr, 0);
    assert_good(mr);
    if (!fake_vmm.fails_from_then_on)
        fake_vmm.fail_at = 0;
    rs_mr_destroy(mr, false);
}

TEST(every_failing_call_is_survived)
{
    static const CUresult errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN};
    uint64_t calls;

    rs_mr_destroy(make(GIB, NULL), false);
    use_everything(CUDA_SUCCESS);
    calls = fake_vmm.calls;
    assert_true(calls > 20);
    assert_true(fake_vmm.unmappings > 0);
    for (size_t i = 0; i < RS_ARRAY_LENGTH(errors); i++)
        for (uint64_t at = 1; at < calls; at++) {
            fake_vmm_install(GIB);
            account = (struct rs_account){.device = NULL};
            fake_vmm.fail_at = at;
            fake_vmm.fail_with = errors[i];
            use_everything(errors[i]);
            if (fake_vmm.calls <= 2) /* the reservation: there is nothing to destroy */
                continue;
            assert_true(fake_vmm_is_clean());
            assert_int_equal(rs_account_held_bytes(&account), 0);
        }
}

TEST(a_driver_that_fails_for_ever_is_survived)
{
    for (uint64_t at = 1; at < 60; at++) {
        rs_mr_destroy(make(GIB, NULL), false);
        fake_vmm.fail_at = at;
        fake_vmm.fails_from_then_on = true;
        fake_vmm.fail_with = CUDA_ERROR_LAUNCH_FAILED;
        use_everything(CUDA_ERROR_LAUNCH_FAILED);
        assert_int_equal(fake_vmm.wrong_calls, 0);
    }
}

TEST(every_missing_host_allocation_is_survived)
{
    long allowed = 0;

    rs_mr_destroy(make(GIB, NULL), false);
    do {
        fake_vmm_install(GIB);
        account = (struct rs_account){.device = NULL};
        host_refused = 0;
        host_left = allowed++;
        {
            struct rs_allocation live[4] = {{0}};
            static const size_t sizes[4] = {100 * MIB, 512, 100 * MIB, 160 * MIB};
            struct rs_mr *mr = NULL;
            long left;
            const struct rs_mr_descriptor *descriptor = &rs_mr_descriptor_virtual;
            struct {
                size_t granularity, initial_size, maximum_size;
                uint64_t reserve;
            } config = {32 * MIB, 0, SIZE_MAX, 4};
            if (descriptor->create(&environment, &config, NULL, &mr) == 0) {
                for (size_t i = 0; i < 4; i++) {
                    CUresult result = rs_mr_allocate(mr, sizes[i], NULL, &live[i]);
                    assert_true(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
                    left = host_left;
                    host_left = left < 0 ? -1 : 0; /* frees need no memory */
                    if (i == 2 && live[0].size_bytes)
                        assert_int_equal(rs_mr_deallocate(mr, &live[0], NULL), CUDA_SUCCESS);
                    host_left = left;
                    assert_good(mr);
                }
                (void)rs_mr_trim(mr, 0);
                assert_good(mr);
                host_left = host_left < 0 ? -1 : 0;
                rs_mr_destroy(mr, false);
            }
        }
        host_left = -1;
        assert_true(fake_vmm_is_clean());
    } while (host_refused > 0 && allowed < 1000);
    assert_in_range(allowed, 4, 999);
}

/* ---- random traces ---- */

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

/* ---- threads ---- */

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

/* ---- nearly all of it live ---- */

static size_t rounded_of(size_t size_bytes)
{
    return (size_bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

/* Log-uniform between the two. */
static size_t random_size(uint64_t *seed, unsigned least_bits, unsigned most_bits)
{
    unsigned bits = least_bits + (unsigned)(test_random(seed) % (most_bits - least_bits));

    return ((size_t)1 << bits) + test_random(seed) % ((size_t)1 << bits);
}

/* Blocks come and go while their sizes, each rounded to 2 MiB, stay below what there is: none is
 * refused, whatever lies between them. */
static void use_all_of_it(size_t capacity_bytes, unsigned least_bits, unsigned most_bits,
                          uint64_t seed)
{
    enum { LIVE_MAX = 512, STEPS = 2000 };
    static struct rs_allocation live[LIVE_MAX];
    struct rs_mr *mr = make(capacity_bytes, OPTIONS("granularity=2MiB"));
    size_t count = 0, live_bytes = 0;

    for (unsigned step = 0; step < STEPS; step++) {
        size_t size_bytes = random_size(&seed, least_bits, most_bits);
        while (count == LIVE_MAX || live_bytes + rounded_of(size_bytes) > capacity_bytes) {
            size_t at = test_random(&seed) % count;
            live_bytes -= rounded_of(live[at].size_bytes);
            assert_int_equal(rs_mr_deallocate(mr, &live[at], NULL), CUDA_SUCCESS);
            live[at] = live[--count];
        }
        assert_int_equal(rs_mr_allocate(mr, size_bytes, NULL, &live[count]), CUDA_SUCCESS);
        live_bytes += rounded_of(live[count++].size_bytes);
    }
    assert_true(rs_mr_check(mr));
    while (count > 0)
        assert_int_equal(rs_mr_deallocate(mr, &live[--count], NULL), CUDA_SUCCESS);
    end(mr);
}

TEST(what_is_live_is_all_that_is_taken_of_the_device)
{
    static const unsigned bits[][2] = {{20, 23}, {21, 25}, {12, 26}, {9, 20}, {22, 27}, {24, 27}};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(bits); i++)
        use_all_of_it(512 * MIB, bits[i][0], bits[i][1], 7 + i);
}

/* ---- others' calls ---- */

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
    while (rs_mr_allocate_held(others.mr, 2 * MIB, NULL, &others.piece) != CUDA_SUCCESS)
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
    assert_in_range(atomic_load(&clock_ahead_ns) - begin_ns, 14 * SECOND_NS, 16 * SECOND_NS);
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
    assert_int_equal(atomic_load(&clock_ahead_ns), begin_ns);
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
