/* SPDX-License-Identifier: Apache-2.0 */
/* headroom: leaves some of the device's memory free, the headroom.  The first leaf beneath decides
 * how.
 *
 * Managed and system memory migrate.  As with RMM's sam_headroom_memory_resource, the driver is
 * advised to keep a part of each block on the device, as large as the free memory less the
 * headroom, and the rest on the host.  The advice is taken back when the block is freed, so that no
 * block of a pool keeps it.
 *
 * Device memory does not migrate.  A request that the upstream serves from held memory passes.  Any
 * other request that would leave less than the headroom free gets CUDA_ERROR_OUT_OF_MEMORY, so that
 * fallback(headroom(cuda, headroom=1GiB), managed) leaves room for other processes.  Put headroom
 * beneath an allocator, where it bounds the growth.  Above an allocator, an initial size is not
 * checked, and a chunk of fixed_size or binning may be larger than the request that was checked.
 *
 * For pinned memory the driver refuses the advice, and headroom has no effect. */
#include "driver/driver.h"
#include "resource/report.h"
#include "resource/resource.h"

enum { PLACEMENT_UNIT = 256 }; /* RMM's unit; the driver rounds to pages */

struct headroom_config {
    size_t headroom;
};

struct headroom {
    struct rs_mr base;
    struct headroom_config set;
    bool is_placing; /* the memory migrates, so the resource advises the driver where to keep it */
    /* Announced bytes: threads are asking the driver for them, and it still reports them as free.
     */
    _Atomic size_t pending_bytes;
    _Atomic uint64_t on_device_bytes, on_host_bytes, refusals;
};

/* Returns the bytes of device memory that are free above the headroom. */
static size_t bytes_above_headroom(const struct headroom *headroom)
{
    size_t free_bytes = 0, total_bytes = 0;
    CUresult result;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(headroom->base.environment->context, &result);

    if (result == CUDA_SUCCESS &&
        rs_driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
        free_bytes = 0; /* the context is broken, and the program's next call returns the error */
    return free_bytes > headroom->set.headroom ? free_bytes - headroom->set.headroom : 0;
}

/* ---- memory that migrates ---- */

static void advise_part(const struct headroom *headroom, CUdeviceptr address, size_t size_bytes,
                        CUmem_advise advice, int where)
{
    if (size_bytes > 0)
        (void)rs_placement_advise(headroom->base.environment->context, address, size_bytes, advice,
                                  where);
}

static void place_block(struct headroom *headroom, const struct rs_allocation *allocation)
{
    size_t device_bytes = rs_round_down(
        rs_min(bytes_above_headroom(headroom), allocation->size_bytes), PLACEMENT_UNIT);
    size_t host_bytes = allocation->size_bytes - device_bytes;

    advise_part(headroom, allocation->address, device_bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                (int)headroom->base.environment->device);
    advise_part(headroom, allocation->address + device_bytes, host_bytes,
                CU_MEM_ADVISE_SET_PREFERRED_LOCATION, RS_PLACEMENT_HOST);
    atomic_fetch_add_explicit(&headroom->on_device_bytes, device_bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&headroom->on_host_bytes, host_bytes, memory_order_relaxed);
}

/* ---- device memory ---- */

/* Announces bytes that this thread will ask the driver for.  Returns false, with nothing announced,
 * when these bytes and those that other threads have announced would not leave the headroom free.
 * Bytes that another thread has just taken, and still announces, count twice for a moment.  So if
 * only the announced bytes stand in the way, the function tries again many times. */
static bool announce(struct headroom *headroom, size_t bytes)
{
    enum { ROUNDS_MAX = 64, NAP_NS = 20 * 1000 };
    size_t spare = 0, others = 0;

    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        others = atomic_fetch_add(&headroom->pending_bytes, bytes);
        spare = bytes_above_headroom(headroom);
        if (others <= spare && bytes <= spare - others)
            return true;
        atomic_fetch_sub(&headroom->pending_bytes, bytes);
        if (others == 0 || bytes > spare)
            return false;
        rs_nap(NAP_NS);
    }
    return false;
}

static CUresult allocate_guarded(struct headroom *headroom, size_t size_bytes, CUstream stream,
                                 enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_mr *upstream = headroom->base.upstream[0];
    CUresult result = rs_mr_allocate_with(upstream, size_bytes, stream, RS_EFFORT_HELD, out);
    size_t taken_bytes;

    if (result != CUDA_ERROR_NOT_READY)
        return result;
    if (!rs_round_up(size_bytes, RS_DRIVER_GRANULARITY, &taken_bytes) ||
        !announce(headroom, taken_bytes)) {
        result = rs_mr_allocate_with(upstream, size_bytes, NULL, RS_EFFORT_HELD | RS_EFFORT_CUT_ANY,
                                     out);
        if (result != CUDA_ERROR_NOT_READY)
            return result;
        atomic_fetch_add_explicit(&headroom->refusals, 1, memory_order_relaxed);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = rs_mr_allocate_with(upstream, size_bytes, stream, effort, out);
    atomic_fetch_sub(&headroom->pending_bytes, taken_bytes);
    return result;
}

/* ---- the resource ---- */

/* Returns the effort with which to ask the upstream.  If all memory beneath is of one kind,
 * RS_EFFORT_BEST is removed, since no upstream is slower than another.  For device memory
 * RS_EFFORT_LITTLE is added, so that upstream takes no more than was announced. */
static enum rs_effort effort_upstream(const struct headroom *headroom, enum rs_effort effort)
{
    unsigned memories = headroom->base.memories;

    if (!(memories & (memories - 1)))
        effort = effort & ~RS_EFFORT_BEST;
    return headroom->is_placing ? effort : effort | RS_EFFORT_LITTLE;
}

static CUresult headroom_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                  enum rs_effort effort, struct rs_allocation *out)
{
    struct headroom *headroom = RS_MR_AS(headroom, mr);
    bool is_held = rs_effort_is_held(effort);
    CUresult result;

    if (!is_held)
        effort = effort_upstream(headroom, effort);
    if (!is_held && !headroom->is_placing)
        return allocate_guarded(headroom, size_bytes, stream, effort, out);
    result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);
    if (result == CUDA_SUCCESS && headroom->is_placing)
        place_block(headroom, out);
    return result;
}

static CUresult headroom_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                    CUstream stream)
{
    struct headroom *headroom = RS_MR_AS(headroom, mr);
    CUresult result;

    /* The advice is taken back before the free: afterwards another thread may have the memory. */
    if (headroom->is_placing)
        advise_part(headroom, allocation->address, allocation->size_bytes,
                    CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
                    (int)headroom->base.environment->device);
    result = rs_mr_deallocate(mr->upstream[0], allocation, stream);
    if (result != CUDA_SUCCESS && headroom->is_placing)
        place_block(headroom, allocation);
    return result;
}

static const struct rs_counter_row headroom_counters[] = {
    RS_COUNTER_ROW("preferred_on_device", TOTAL, BYTES, struct headroom, on_device_bytes),
    RS_COUNTER_ROW("preferred_on_host", TOTAL, BYTES, struct headroom, on_host_bytes),
    RS_COUNTER_ROW("internal_refusals", TOTAL, COUNT, struct headroom, refusals),
    RS_COUNTER_END,
};

static const struct rs_mr_ops headroom_ops = {
    .allocate = headroom_allocate,
    .deallocate = headroom_deallocate,
    .counters = headroom_counters,
};

static bool migrates(const struct rs_mr *mr)
{
    while (mr->upstream[0])
        mr = mr->upstream[0];
    return mr->descriptor->memory != RS_MEMORY_DEVICE;
}

static int headroom_init(struct rs_mr *mr, const void *config)
{
    (void)config;
    RS_MR_AS(headroom, mr)->is_placing = migrates(mr);
    return 0;
}

static bool headroom_validate(const void *config, const struct rs_validation *of)
{
    const struct headroom_config *settings = config;

    return settings->headroom != SIZE_MAX ||
           RS_REFUSE(of, "'headroom' needs a size, as in headroom=1GiB");
}

static const struct rs_option headroom_options[] = {
    RS_OPTION_SIZE_ROW(struct headroom_config, headroom, "none",
                       "how much device memory is to stay free", .none = true, .is_required = true,
                       .of_device = true),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_headroom = {
    .name = "headroom",
    .aliases = {"sam_headroom"},
    .summary = "keeps a given amount of device memory free: a request that would leave less "
               "free is refused, or, for managed memory, placed on the host",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .config_bytes = sizeof(struct headroom_config),
    .options = headroom_options,
    .validate = headroom_validate,
};

RS_MR_CLASS_WITH_SET(headroom, struct headroom, headroom_ops, headroom_init);
