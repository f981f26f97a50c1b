/* SPDX-License-Identifier: Apache-2.0 */
/* The users of memory that `virtual` moves: work that is not done, and other devices. */
#include "virtual_stack.h"

#include "driver/driver.h"
#include "flying_clock.h"

#include <stdatomic.h>
#include <string.h>

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
    assert_int_equal(rs_mr_allocate_with(mr, 192 * MIB, NULL, RS_EFFORT_HELD, &block),
                     CUDA_ERROR_NOT_READY);
    begin_ns = atomic_load(&clock_ahead_ns);
    atomic_store(&time_flies, true);
    refuse(mr, 192 * MIB);
    atomic_store(&time_flies, false);
    assert_in_range(atomic_load(&clock_ahead_ns) - begin_ns, 15 * SECOND_NS, 16 * SECOND_NS);
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
    assert_in_range(atomic_load(&clock_ahead_ns) - ahead_ns, 0,
                    SECOND_NS / 100); /* without a wait */
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
    assert_int_equal(rs_mr_allocate_with(data, 3 * GIB, NULL, RS_EFFORT_HELD, &block),
                     CUDA_ERROR_NOT_READY);
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
    assert_int_equal(rs_mr_allocate_with(mr, 3 * GIB, NULL, RS_EFFORT_HELD, &large), CUDA_SUCCESS);
    assert_true(fake_vmm.unmappings > calls); /* they were there to be moved */
    assert_int_equal(rs_mr_deallocate(mr, &large, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_trim(mr, 0) > 0);
    give_many(mr, walls, 5);
    end(mr);
}
