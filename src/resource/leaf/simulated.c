/* SPDX-License-Identifier: Apache-2.0 */
/* simulated: hands out addresses without memory behind them, so that a log of allocations can be
 * replayed through a stack on a machine without a GPU.  It makes no driver call.  config/stacks.c
 * sees to it that it never serves a program.
 *
 * The address space is one range of blocks (ranges.h). */
#include "resource/ranges.h"
#include "resource/report.h"
#include "resource/resource.h"

#include <errno.h>

/* An address where drivers place device memory. */
static const CUdeviceptr FIRST_ADDRESS = (CUdeviceptr)1 << 46;
static const size_t SPACE_BYTES = (size_t)1 << 45;

struct simulated_config {
    size_t size;
};

struct simulated {
    struct rs_mr base;
    struct simulated_config set;

    /* Protected by the lock. */
    struct rs_blocks blocks;
    struct rs_block first; /* the first block of the range */
    uint64_t allocations, deallocations, failures;
};

static bool allocate_address(struct simulated *simulated, const struct rs_block_request *request,
                             struct rs_allocation *out)
{
    struct rs_account *account = simulated->base.environment->account;
    enum rs_memory memory = simulated->base.descriptor->memory;
    size_t bytes = request->rounded_bytes;

    if (bytes > simulated->set.size - simulated->blocks.live_bytes ||
        !rs_record_slab_reserve(&simulated->blocks.records) ||
        !rs_account_take(account, bytes, bytes, memory))
        return false;
    if (!rs_blocks_take(&simulated->blocks, request, out)) {
        rs_account_untake(account, bytes, bytes, memory);
        return false;
    }
    rs_account_taken(account, bytes, bytes, memory);
    return true;
}

static CUresult simulated_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                   enum rs_effort effort, struct rs_allocation *out)
{
    struct simulated *simulated = RS_MR_AS(simulated, mr);
    struct rs_block_request request;
    bool is_served;

    (void)stream;
    if (rs_effort_is_held(effort))
        return CUDA_ERROR_NOT_READY;
    if (!rs_block_request_init(&request, size_bytes, RS_BLOCK_ALIGNMENT, true))
        return CUDA_ERROR_OUT_OF_MEMORY;
    RS_MUTEX_GUARD(&mr->lock);
    is_served = allocate_address(simulated, &request, out);
    simulated->allocations += is_served;
    simulated->failures += !is_served;
    return is_served ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult simulated_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                     CUstream stream)
{
    struct simulated *simulated = RS_MR_AS(simulated, mr);
    struct rs_block *block = allocation->token;

    (void)stream;
    RS_MUTEX_GUARD(&mr->lock);
    simulated->deallocations++;
    rs_account_give(mr->environment->account, block->size_bytes, block->size_bytes,
                    mr->descriptor->memory);
    rs_blocks_give(&simulated->blocks, block);
    return CUDA_SUCCESS;
}

static void simulated_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_blocks *blocks = &RS_MR_AS(simulated, mr)->blocks;

    if (!memory_is_gone)
        rs_account_give(mr->environment->account, blocks->live_bytes, blocks->live_bytes,
                        mr->descriptor->memory);
    rs_blocks_end(blocks);
}

static const struct rs_counter_row simulated_counters[] = {
    RS_COUNTER_ROW("held", LIVE, BYTES, struct simulated, blocks.live_bytes),
    RS_COUNTER_ROW("held_peak", PEAK, BYTES, struct simulated, blocks.peak_live_bytes),
    RS_COUNTER_ROW("allocations", TOTAL, COUNT, struct simulated, allocations),
    RS_COUNTER_ROW("frees", TOTAL, COUNT, struct simulated, deallocations),
    RS_COUNTER_ROW("internal_refusals", TOTAL, COUNT, struct simulated, failures),
    RS_COUNTER_END,
};

static bool simulated_is_sound(struct rs_mr *mr)
{
    const struct simulated *simulated = RS_MR_AS(simulated, mr);
    size_t free_blocks;

    return rs_blocks_index_check(&simulated->blocks, &free_blocks) &&
           free_blocks == simulated->blocks.free_block_count &&
           simulated->blocks.live_bytes <= simulated->set.size;
}

static const struct rs_mr_ops simulated_ops = {
    .allocate = simulated_allocate,
    .deallocate = simulated_deallocate,
    .end = simulated_end,
    .counters = simulated_counters,
    .is_sound = simulated_is_sound,
};

static int simulated_init(struct rs_mr *mr, const void *config)
{
    struct simulated *simulated = RS_MR_AS(simulated, mr);

    (void)config;
    if (!rs_blocks_begin(&simulated->blocks))
        return -ENOMEM;
    simulated->first = (struct rs_block){.address = FIRST_ADDRESS, .size_bytes = SPACE_BYTES};
    rs_blocks_insert_free(&simulated->blocks, &simulated->first);
    return 0;
}

static const struct rs_option simulated_options[] = {
    RS_OPTION_SIZE_ROW(struct simulated_config, size, "none",
                       "the most bytes that may be in use at one time; the size of each block is "
                       "rounded up to a multiple of 512 bytes; none (the default): no maximum",
                       .none = true),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_simulated = {
    .name = "simulated",
    .summary =
        "addresses without memory behind them, for rmmshim's own tests; no program can use it",
    .memory = RS_MEMORY_DEVICE,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .config_bytes = sizeof(struct simulated_config),
    .options = simulated_options,
};

RS_MR_CLASS_WITH_SET(simulated, struct simulated, simulated_ops, simulated_init);
