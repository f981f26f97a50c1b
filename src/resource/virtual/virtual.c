/* SPDX-License-Identifier: Apache-2.0 */
/* virtual: a reserved range of addresses, with physical memory mapped behind parts of it.
 *
 * The range is cut into blocks without gaps (ranges.h).  A block is live, free, or void, which is
 * addresses without memory.  Physical memory comes in granules of one size, each mapped at a
 * multiple of this size.
 *
 * A request that no free block serves gets a hole: void addresses, together with the free memory on
 * either side.  Memory for the void addresses comes from wherever whole granules are free, and only
 * the missing rest from the driver.  So free memory is never too scattered for a request.  The held
 * bytes are at most the peak of the live bytes, or the initial size, plus the unused ends of
 * granules. */
#include "resource/virtual/virtual.h"

#include "base/log.h"
#include "driver/driver.h"
#include "resource/report.h"

#include <errno.h>
#include <stdlib.h>

struct virtual_config {
    size_t granularity, initial_size, maximum_size;
    uint64_t reserve;
};

void rs_virtual_leave(struct rs_virtual *vm)
{
    bool last = vm->ended && vm->calls == 0 && !vm->released;

    vm->released = vm->released || last;
    rs_mutex_unlock(&vm->base.lock);
    if (last)
        rs_virtual_release_everything(vm);
}

static CUresult virtual_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                   CUstream stream)
{
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    struct rs_block *block = allocation->token;

    (void)stream;
    rs_mutex_lock(&vm->base.lock);
    RS_ASSERT(!block->is_free && block->address == allocation->address);
    if (!vm->ended)
        rs_blocks_give(&vm->blocks, block);
    rs_mutex_unlock(&vm->base.lock);
    return CUDA_SUCCESS;
}

/* ---- the check ---- */

struct sums {
    size_t live_bytes, busy_bytes, free_blocks, void_blocks, granules;
};

/* Checks that all granules of the block are mapped.  A void block must begin at a granule and have
 * none mapped.  Adds the mapped granules that begin in the block to `sums`. */
static bool block_memory_check(const struct rs_virtual *vm, struct rs_virtual_region *region,
                               const struct rs_block *block, struct sums *sums)
{
    size_t first = (block->address - region->base) / vm->granule_bytes;
    size_t end = (block->address - region->base + block->size_bytes - 1) / vm->granule_bytes;

    if (block->is_void && (block->address - region->base) % vm->granule_bytes != 0)
        return false;
    for (size_t i = first; i <= end; i++) {
        if ((region->handles[i] == 0) != block->is_void)
            return false;
        sums->granules +=
            region->handles[i] != 0 && region->base + i * vm->granule_bytes >= block->address;
    }
    return true;
}

/* Checks one region from end to end: no gap, no overlap, no two neighbours that should have merged.
 */
static bool region_check(const struct rs_virtual *vm, struct rs_virtual_region *region,
                         struct sums *sums)
{
    CUdeviceptr address = region->base;
    const struct rs_block *before = NULL;

    for (const struct rs_block *block = &region->first_block; block; block = block->after) {
        if (block->address != address || block->before != before || block->size_bytes == 0 ||
            address % RS_BLOCK_ALIGNMENT != 0 ||
            block->is_free + block->is_void + block->is_busy > 1 ||
            (before &&
             ((before->is_free && block->is_free) || (before->is_void && block->is_void))))
            return false;
        if (!block->is_busy && !block_memory_check(vm, region, block, sums))
            return false;
        sums->free_blocks += block->is_free;
        sums->void_blocks += block->is_void;
        if (block->is_busy)
            sums->busy_bytes += block->size_bytes;
        else if (!block->is_free && !block->is_void)
            sums->live_bytes += block->size_bytes;
        address += block->size_bytes;
        before = block;
    }
    return address == region->base + region->size_bytes;
}

static bool virtual_is_sound(struct rs_mr *mr)
{
    const struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    struct sums sums = {0};
    size_t free_blocks, void_blocks;

    if (vm->ended)
        return true;
    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next)
        if (!region_check(vm, region, &sums))
            return false;
    if (!rs_block_index_check(&vm->blocks.free_blocks[RS_BLOCKS_COMMON], &free_blocks) ||
        !rs_block_index_check(&vm->voids, &void_blocks) || free_blocks != sums.free_blocks ||
        void_blocks != sums.void_blocks || sums.live_bytes != vm->blocks.live_bytes ||
        vm->charged_granules > vm->maximum_granules || vm->charged_granules < vm->held_granules ||
        vm->spare_room < vm->spare_count)
        return false;
    if (vm->calls > 0)
        return true;
    return sums.busy_bytes == vm->stuck_bytes && vm->charged_granules == vm->held_granules &&
           vm->ahead_bytes == 0 &&
           (vm->stuck_bytes > 0 || sums.granules + vm->spare_count == vm->held_granules);
}

/* ---- the operations ---- */

static size_t virtual_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    size_t released_bytes = 0;

    rs_mutex_lock(&vm->base.lock);
    rs_virtual_loosen(vm);
    if (!vm->ended && !vm->is_still)
        released_bytes = rs_virtual_trim(vm, trim->keep_bytes, !rs_trim_takes_initial(trim, mr));
    RS_ASSERT_SLOW(virtual_is_sound(mr));
    rs_virtual_leave(vm);
    return released_bytes;
}

/* Gives a peer device access to all mappings, or takes the access away.  cuCtxEnablePeerAccess does
 * not do that, since each mapping has access settings of its own.  Called while is_still. */
static CUresult set_peer(struct rs_virtual *vm, CUdevice peer, bool allowed)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer},
        .flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE,
    };
    CUresult result = CUDA_SUCCESS;

    RS_ASSERT(vm->is_still);
    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next) {
        size_t count = region->size_bytes / vm->granule_bytes, end;
        for (size_t i = 0; i < count && result == CUDA_SUCCESS; i = end + 1) {
            for (end = i; end < count && region->handles[end]; end++)
                ;
            if (end > i)
                result = rs_driver.cuMemSetAccess(region->base + i * vm->granule_bytes,
                                                  (end - i) * vm->granule_bytes, &access, 1);
        }
    }
    return result;
}

/* Changes a peer's access to all mappings.  Waits first for the driver calls under way, and lets
 * none begin, so that no mapping is missed.  Later mappings follow environment->peers. */
static CUresult virtual_access_changed(struct rs_mr *mr, CUdevice peer, bool allowed)
{
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    CUresult result = CUDA_SUCCESS;
    CUstreamCaptureMode mode;

    rs_mutex_lock(&vm->base.lock);
    while (vm->is_still)
        rs_condition_wait(&vm->settled, &vm->base.lock);
    vm->is_still = true;
    while (vm->calls > 0)
        rs_condition_wait(&vm->settled, &vm->base.lock);
    if (!vm->ended) {
        mode = rs_virtual_begin_calls(vm); /* so that no memory is released meanwhile */
        result = set_peer(vm, peer, allowed);
        rs_virtual_end_calls(vm, mode);
    }
    vm->is_still = false;
    pthread_cond_broadcast(&vm->settled);
    rs_virtual_leave(vm);
    return result;
}

static size_t virtual_idle_bytes(struct rs_mr *mr)
{
    return rs_virtual_idle_bytes(RS_MR_AS(rs_virtual, mr));
}

static size_t virtual_growable_bytes(struct rs_mr *mr)
{
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    size_t granules;

    rs_mutex_lock(&vm->base.lock);
    granules = vm->maximum_granules - vm->charged_granules;
    rs_mutex_unlock(&vm->base.lock);
    return granules * vm->granule_bytes;
}

/* Counts the free blocks, which have memory, and not the void ones, which have none. */
static size_t virtual_free_blocks(struct rs_mr *mr)
{
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    size_t blocks;

    rs_mutex_lock(&vm->base.lock);
    blocks = rs_virtual_idle_bytes(vm) > 0 ? vm->blocks.free_block_count : 0;
    rs_mutex_unlock(&vm->base.lock);
    return blocks;
}

static void virtual_report(struct rs_mr *mr, struct rs_report *report)
{
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    const char *name = mr->descriptor->name;
    size_t reserved_bytes = 0;

#define ADD(counter, kind, unit, value)                                                            \
    rs_report_add(report, name, counter, RS_COUNTER_##kind, RS_UNIT_##unit, value)
#define ADD_FIELD(counter, kind, unit, field, times)                                               \
    rs_report_add_sum(report, name, counter, RS_COUNTER_##kind, RS_UNIT_##unit,                    \
                      &RS_TERM(field, times), 1)
    if (!rs_mutex_lock_bounded(&vm->base.lock, name))
        return;
    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next)
        reserved_bytes += region->size_bytes;
    ADD("reserved", LIVE, BYTES, reserved_bytes);
    ADD_FIELD("held", LIVE, BYTES, vm->held_granules, (int64_t)vm->granule_bytes);
    ADD_FIELD("held_peak", PEAK, BYTES, vm->peak_held_granules, (int64_t)vm->granule_bytes);
    ADD_FIELD("live", LIVE, BYTES, vm->blocks.live_bytes, 1);
    ADD_FIELD("live_peak", PEAK, BYTES, vm->blocks.peak_live_bytes, 1);
    ADD("free", LIVE, BYTES, rs_virtual_idle_bytes(vm));
    ADD("largest_free", LARGEST, BYTES, rs_blocks_largest_free_bytes(&vm->blocks));
    ADD_FIELD("moved", TOTAL, BYTES, vm->moved_granules, (int64_t)vm->granule_bytes);
    ADD_FIELD("driver_allocations", TOTAL, COUNT, vm->driver_allocations, 1);
    ADD_FIELD("driver_frees", TOTAL, COUNT, vm->driver_frees, 1);
    ADD_FIELD("internal_refusals", TOTAL, COUNT, vm->driver_refusals, 1);
    ADD_FIELD("allocations", TOTAL, COUNT, vm->allocations, 1);
    ADD_FIELD("failures", TOTAL, COUNT, vm->failures, 1);
    rs_mutex_unlock(&vm->base.lock);
#undef ADD_FIELD
#undef ADD
}

static void virtual_context_ended(struct rs_mr *mr)
{
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);

    rs_mutex_lock(&vm->base.lock);
    RS_ASSERT(!vm->ended);
    vm->ended = true;
    rs_virtual_leave(vm);
}

static void virtual_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    struct rs_virtual_region *region = atomic_load(&vm->regions), *next;

    RS_ASSERT(vm->calls == 0 && !vm->is_still && !vm->is_reserved);
    if (!memory_is_gone && !vm->released)
        rs_virtual_release_everything(vm);
    rs_mr_remove_unfinished(mr);
    for (; region; region = next) {
        next = region->next;
        free(region);
    }
    free(vm->spares);
    rs_blocks_end(&vm->blocks);
    pthread_cond_destroy(&vm->settled);
}

/* ---- creation ---- */

/* Takes the initial size, or as much of it as there is.  To get less is no error, since the device
 * may be shared, and memory is added on demand; it is only logged. */
static CUresult take_initial_granules(struct rs_virtual *vm, size_t initial_bytes)
{
    char asked[RS_SIZE_TEXT_BYTES], got[RS_SIZE_TEXT_BYTES];
    size_t ask_bytes = vm->initial_granules * vm->granule_bytes;
    size_t free_bytes = rs_round_down(vm->base.environment->free_bytes, vm->granule_bytes);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool disturbed;

    while (ask_bytes > 0 && result == CUDA_ERROR_OUT_OF_MEMORY) {
        struct rs_block_request request;
        (void)rs_block_request_init(&request, ask_bytes, RS_BLOCK_ALIGNMENT, false);
        result = rs_virtual_grow(vm, &request, RS_VIRTUAL_HELD_AND_NEW, &disturbed);
        /* The next attempt asks for half, or for the bytes that were free if that is more. */
        ask_bytes = rs_max(rs_round_down(ask_bytes / 2, vm->granule_bytes),
                           free_bytes < ask_bytes ? free_bytes : 0);
    }
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        return result;
    if (vm->held_granules < vm->initial_granules)
        rs_log("virtual: the initial size is %s, but only %s could be allocated: the resource "
               "grows on demand",
               rs_size_format(initial_bytes, asked),
               rs_size_format(vm->held_granules * vm->granule_bytes, got));
    return CUDA_SUCCESS;
}

static CUmemAllocationProp properties_of(const struct rs_environment *environment)
{
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = environment->device},
    };

    /* usable for GPUDirect RDMA, as cudaMalloc's memory is */
    if (rs_driver_device_has(environment->device,
                             CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED))
        properties.allocFlags.gpuDirectRDMACapable = 1;
    /* can be opened by other processes (ipc/pieces.h), as cudaMalloc's memory can */
    if (rs_driver_device_has(environment->device,
                             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
}

static size_t granularity_of_device(const struct rs_environment *environment)
{
    CUmemAllocationProp properties = properties_of(environment);
    size_t granularity = 0;

    return rs_driver.cuMemGetAllocationGranularity(&granularity, &properties,
                                                   CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS
               ? granularity
               : 0;
}

static const struct rs_mr_ops virtual_ops = {
    .allocate = rs_virtual_allocate,
    .deallocate = virtual_deallocate,
    .end = virtual_end,
    .context_ended = virtual_context_ended,
    .finish = rs_virtual_finish,
    .access_changed = virtual_access_changed,
    .trim = virtual_trim,
    .idle_bytes = virtual_idle_bytes,
    .growable_bytes = virtual_growable_bytes,
    .free_blocks = virtual_free_blocks,
    .report = virtual_report,
    .is_sound = virtual_is_sound,
};

/* The default size of a granule is chosen so that a device has many: live blocks pin the granules
 * in which they begin and end.  In a test with random blocks of 16 to 128 MiB, a device of 1024
 * granules refused 5 % of the requests for which 95 % of its memory would have sufficed, and one of
 * 2048 granules none.  A granule of more than 32 MiB is hardly faster to map. */
enum { GRANULES = 2048, GRANULE_MAX = 32 << 20 };

static size_t granule_for(const struct virtual_config *settings,
                          const struct rs_environment *environment)
{
    size_t bytes = rs_min(settings->maximum_size, environment->total_bytes);
    size_t granule_bytes = GRANULE_MAX;

    if (settings->granularity != SIZE_MAX)
        return settings->granularity;
    bytes = rs_min(bytes, rs_account_most(environment->account));
    while (granule_bytes > RS_DRIVER_GRANULARITY && granule_bytes > bytes / GRANULES)
        granule_bytes /= 2;
    return rs_max(granule_bytes, granularity_of_device(environment));
}

static void init_sizes(struct rs_virtual *vm, const struct virtual_config *settings)
{
    size_t maximum_bytes = rs_min(settings->maximum_size, vm->base.environment->total_bytes);
    size_t reserve_bytes;

    vm->granule_bytes = granule_for(settings, vm->base.environment);
    vm->initial_granules = (settings->initial_size + vm->granule_bytes - 1) / vm->granule_bytes;
    vm->maximum_granules = maximum_bytes / vm->granule_bytes;
    vm->initial_granules = rs_min(vm->initial_granules, vm->maximum_granules);
    if (__builtin_mul_overflow(vm->base.environment->total_bytes, (size_t)settings->reserve,
                               &reserve_bytes))
        reserve_bytes = vm->base.environment->total_bytes;
    vm->reserve_bytes = rs_round_down(reserve_bytes, vm->granule_bytes);
    vm->reserve_bytes = rs_max(vm->reserve_bytes, vm->granule_bytes);
}

static int virtual_init(struct rs_mr *mr, const void *config)
{
    const struct virtual_config *settings = config;
    struct rs_virtual *vm = RS_MR_AS(rs_virtual, mr);
    CUresult result;

    rs_mr_retry_unfinished();
    rs_condition_init(&vm->settled);
    if (!rs_blocks_begin(&vm->blocks))
        return -ENOMEM;
    vm->properties = properties_of(mr->environment);
    init_sizes(vm, settings);
    rs_mutex_lock(&mr->lock);
    result = rs_virtual_add_region(vm, vm->granule_bytes);
    if (result == CUDA_SUCCESS && vm->initial_granules > 0 && mr->environment->first_on_device)
        result = take_initial_granules(vm, settings->initial_size);
    rs_mutex_unlock(&mr->lock);
    if (result == CUDA_SUCCESS)
        return 0;
    return result == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;
}

static bool is_supported(CUdevice device)
{
    int supported = 0;

    return rs_driver.cuMemAddressReserve && rs_driver.cuMemAddressFree && rs_driver.cuMemCreate &&
           rs_driver.cuMemRelease && rs_driver.cuMemMap && rs_driver.cuMemUnmap &&
           rs_driver.cuMemSetAccess && rs_driver.cuMemGetAllocationGranularity &&
           rs_driver.cuDeviceGetAttribute &&
           rs_driver.cuDeviceGetAttribute(&supported,
                                          CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                          device) == CUDA_SUCCESS &&
           supported;
}

/* Checks the values that depend on the device. */
static bool validate_at(const struct virtual_config *settings, const struct rs_validation *of)
{
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];
    bool is_given = settings->granularity != SIZE_MAX;
    size_t granularity;

    if (!is_supported(of->environment->device))
        return RS_REFUSE(of,
                         "'virtual' needs virtual memory management, which device %d or its "
                         "driver does not have",
                         (int)of->environment->device);
    granularity = granularity_of_device(of->environment);
    if (is_given && granularity > 0 && settings->granularity % granularity != 0)
        return RS_REFUSE(
            of, "the granularity %s is not a multiple of the device's own granularity, %s",
            rs_size_format(settings->granularity, first), rs_size_format(granularity, second));
    return rs_mr_fits_device(of, "granularity", is_given ? settings->granularity : 0) &&
           rs_mr_fits_device(of, "initial size", settings->initial_size);
}

static bool virtual_validate(const void *config, const struct rs_validation *of)
{
    const struct virtual_config *settings = config;
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];
    size_t granularity =
        settings->granularity == SIZE_MAX ? RS_DRIVER_GRANULARITY : settings->granularity;

    if (!rs_is_power_of_two(granularity))
        return RS_REFUSE(of, "the granularity %s is not a power of two",
                         rs_size_format(settings->granularity, first));
    if (settings->maximum_size < settings->initial_size)
        return RS_REFUSE(of, "the maximum size %s is below the initial size %s",
                         rs_size_format(settings->maximum_size, first),
                         rs_size_format(settings->initial_size, second));
    if (settings->maximum_size < granularity)
        return RS_REFUSE(of, "the maximum size %s is below the granularity %s",
                         rs_size_format(settings->maximum_size, first),
                         rs_size_format(granularity, second));
    return !of->environment || validate_at(settings, of);
}

/* Of the option granularity: the driver's calls cost about the same for 2 MiB as for 64 MiB, some
 * 60 us to create, map and give access, and 30 us to undo that (tests/conformance/MEASURED.md).  So
 * small granules make growths and moves slow.  Large ones leave more memory unused. */
static const struct rs_option virtual_options[] = {
    RS_OPTION_SIZE_ROW(
        struct virtual_config, granularity, "none",
        "size of the pieces in which physical memory is taken and mapped, a power of two; none "
        "(the default): about 1/2048 of the device's memory, of the limit or of maximum_size, "
        "whichever is smallest, but at least 2 MiB and at most 32 MiB",
        .none = true, .minimum = RS_DRIVER_GRANULARITY, .maximum = (uint64_t)1 << 34),
    RS_OPTION_SIZE_ROW(
        struct virtual_config, initial_size, "0",
        "how much memory is taken at the first allocation; `rmmshim trim` does not give it back; "
        "it goes back only when a request would fail otherwise",
        .multiple_of = 256, .maximum = RS_SIZE_ADDRESSABLE,
        .aliases = {{"initial_pool_size", RS_OPTION_SIZE}}),
    RS_OPTION_SIZE_ROW(struct virtual_config, maximum_size, "none",
                       "the most physical memory that is taken, rounded down to a multiple of the "
                       "granularity; none (the default): no maximum",
                       .multiple_of = 256, .maximum = RS_SIZE_ADDRESSABLE, .none = true,
                       .aliases = {{"maximum_pool_size", RS_OPTION_SIZE}}),
    RS_OPTION_COUNT_ROW(struct virtual_config, reserve, "4",
                        "how much address space is reserved at a time: this number times the size "
                        "of the device's memory",
                        .minimum = 1, .maximum = 64),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_virtual = {
    .name = "virtual",
    .summary = "device memory that is mapped at reserved addresses, so that separate free pieces "
               "can be mapped next to each other to serve a large request",
    .memory = RS_MEMORY_DEVICE,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct virtual_config),
    .options = virtual_options,
    .validate = virtual_validate,
};

RS_MR_CLASS(virtual, struct rs_virtual, virtual_ops, virtual_init);
