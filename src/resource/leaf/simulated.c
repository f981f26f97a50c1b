/* SPDX-License-Identifier: Apache-2.0 */
/* simulated: addresses without memory behind them, so that a trace can be replayed through a stack
 * on a machine without a GPU.  It makes no driver call, and never serves a program
 * (config/stacks.c).
 *
 * The address space grows at its end.  Freed parts are in one list by address, merged with free
 * neighbours; the first part that fits serves a request. */
#include "heap/record_slab.h"
#include "resource/report.h"
#include "resource/resource.h"

/* In the range where device memory lies. */
static const CUdeviceptr FIRST_ADDRESS = (CUdeviceptr)1 << 46;
static const size_t SPACE_BYTES = (size_t)1 << 45;

struct simulated_config {
    size_t size;
};

/* A part of the address space; the list is in order of addresses. */
struct part {
    struct part *before, *after;
    CUdeviceptr address;
    size_t size_bytes;
    bool is_free;
};

_Static_assert(sizeof(struct part) <= RS_RECORD_BYTES, "a part is a slab's record");

struct simulated {
    struct rs_mr base;
    size_t capacity_bytes;

    /* Under the lock. */
    struct rs_record_slab records;
    struct part *first, *last;
    CUdeviceptr end; /* the present end of the address space */
    size_t live_bytes, peak_bytes;
    uint64_t allocations, deallocations, failures;
};

/* Adds a part after `before` (NULL: at the beginning).  NULL when out of host memory. */
static struct part *add_part(struct simulated *simulated, struct part *before, CUdeviceptr address,
                             size_t size_bytes)
{
    struct part *part = rs_record_slab_take(&simulated->records);

    if (!part)
        return NULL;
    *part = (struct part){
        .before = before,
        .after = before ? before->after : NULL,
        .address = address,
        .size_bytes = size_bytes,
    };
    if (part->after)
        part->after->before = part;
    else
        simulated->last = part;
    if (before)
        before->after = part;
    else
        simulated->first = part;
    return part;
}

static void remove_part(struct simulated *simulated, struct part *part)
{
    if (part->before)
        part->before->after = part->after;
    else
        simulated->first = part->after;
    if (part->after)
        part->after->before = part->before;
    else
        simulated->last = part->before;
    rs_record_slab_give(&simulated->records, part);
}

/* Takes the first free part that is large enough, cut to size. */
static struct part *reuse_part(struct simulated *simulated, size_t size_bytes)
{
    struct part *part = simulated->first;

    while (part && !(part->is_free && part->size_bytes >= size_bytes))
        part = part->after;
    if (!part)
        return NULL;
    if (part->size_bytes > size_bytes) {
        struct part *rest =
            add_part(simulated, part, part->address + size_bytes, part->size_bytes - size_bytes);
        if (!rest)
            return NULL;
        rest->is_free = true;
        part->size_bytes = size_bytes;
    }
    part->is_free = false;
    return part;
}

static struct part *place_part(struct simulated *simulated, size_t size_bytes)
{
    struct part *part = reuse_part(simulated, size_bytes);

    if (part || size_bytes > SPACE_BYTES - (simulated->end - FIRST_ADDRESS))
        return part;
    part = add_part(simulated, simulated->last, simulated->end, size_bytes);
    if (part)
        simulated->end += size_bytes;
    return part;
}

static struct part *allocate_locked(struct simulated *simulated, size_t size_bytes)
{
    struct rs_account *account = simulated->base.environment->account;
    enum rs_memory memory = simulated->base.descriptor->memory;
    struct part *part = NULL;

    if (size_bytes <= simulated->capacity_bytes - simulated->live_bytes &&
        rs_account_take(account, size_bytes, size_bytes, memory)) {
        part = place_part(simulated, size_bytes);
        if (part)
            rs_account_taken(account, size_bytes, size_bytes, memory);
        else
            rs_account_untake(account, size_bytes, size_bytes, memory);
    }
    if (part) {
        simulated->live_bytes += size_bytes;
        simulated->peak_bytes = rs_max(simulated->peak_bytes, simulated->live_bytes);
    }
    simulated->allocations += part != NULL;
    simulated->failures += part == NULL;
    return part;
}

static CUresult simulated_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                   enum rs_effort effort, struct rs_allocation *out)
{
    struct simulated *simulated = RS_MR_AS(simulated, mr);
    struct part *part = NULL;
    size_t rounded_bytes;

    (void)stream;
    if (rs_effort_is_held(effort))
        return CUDA_ERROR_NOT_READY;
    if (!rs_round_up(size_bytes, RS_BLOCK_ALIGNMENT, &rounded_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    rs_mutex_lock(&simulated->base.lock);
    part = allocate_locked(simulated, rounded_bytes);
    rs_mutex_unlock(&simulated->base.lock);
    if (!part)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (struct rs_allocation){part->address, size_bytes, part, NULL};
    return CUDA_SUCCESS;
}

static CUresult simulated_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                     CUstream stream)
{
    struct simulated *simulated = RS_MR_AS(simulated, mr);
    struct part *part = allocation->token, *before, *after;

    (void)stream;
    rs_mutex_lock(&simulated->base.lock);
    RS_ASSERT(!part->is_free);
    simulated->live_bytes -= part->size_bytes;
    simulated->deallocations++;
    rs_account_give(simulated->base.environment->account, part->size_bytes, part->size_bytes,
                    mr->descriptor->memory);
    part->is_free = true;
    before = part->before;
    if (before && before->is_free) {
        before->size_bytes += part->size_bytes;
        remove_part(simulated, part);
        part = before;
    }
    after = part->after;
    if (after && after->is_free) {
        part->size_bytes += after->size_bytes;
        remove_part(simulated, after);
    }
    rs_mutex_unlock(&simulated->base.lock);
    return CUDA_SUCCESS;
}

static void simulated_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct simulated *simulated = RS_MR_AS(simulated, mr);

    if (!memory_is_gone)
        rs_account_give(mr->environment->account, simulated->live_bytes, simulated->live_bytes,
                        mr->descriptor->memory);
    rs_record_slab_destroy(&simulated->records);
}

static const struct rs_counter_row simulated_counters[] = {
    RS_COUNTER_ROW("held", LIVE, BYTES, struct simulated, live_bytes),
    RS_COUNTER_ROW("held_peak", PEAK, BYTES, struct simulated, peak_bytes),
    RS_COUNTER_ROW("allocations", TOTAL, COUNT, struct simulated, allocations),
    RS_COUNTER_ROW("frees", TOTAL, COUNT, struct simulated, deallocations),
    RS_COUNTER_ROW("internal_refusals", TOTAL, COUNT, struct simulated, failures),
    RS_COUNTER_END,
};

static bool simulated_is_sound(struct rs_mr *mr)
{
    const struct simulated *simulated = RS_MR_AS(simulated, mr);
    const struct part *before = NULL;
    CUdeviceptr address = FIRST_ADDRESS;
    size_t live_bytes = 0;

    for (const struct part *part = simulated->first; part; part = part->after) {
        if (part->before != before || part->address != address || part->size_bytes == 0 ||
            (before && before->is_free && part->is_free))
            return false;
        live_bytes += part->is_free ? 0 : part->size_bytes;
        address += part->size_bytes;
        before = part;
    }
    return before == simulated->last && address == simulated->end &&
           live_bytes == simulated->live_bytes && live_bytes <= simulated->capacity_bytes;
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
    const struct simulated_config *settings = config;
    struct simulated *simulated = RS_MR_AS(simulated, mr);

    simulated->capacity_bytes = settings->size;
    simulated->end = FIRST_ADDRESS;
    return 0;
}

static const struct rs_option simulated_options[] = {
    RS_OPTION_SIZE_ROW(struct simulated_config, size, "none",
                       "most bytes that may be live at once, in units of 512", .none = true),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_simulated = {
    .name = "simulated",
    .summary = "addresses without memory, for replaying traces; serves no program",
    .memory = RS_MEMORY_DEVICE,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .config_bytes = sizeof(struct simulated_config),
    .options = simulated_options,
    .bytes = sizeof(struct simulated),
    .ops = &simulated_ops,
    .init = simulated_init,
};
