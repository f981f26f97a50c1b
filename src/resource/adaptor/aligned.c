/* SPDX-License-Identifier: Apache-2.0 */
/* aligned: gives a stronger alignment to blocks of at least a threshold size.  RMM's
 * aligned_resource_adaptor.
 *
 * RMM asks its upstream for align_up(size, alignment) + alignment - 256, as its blocks are aligned
 * to 256 bytes already.  Here every block is aligned to 512 bytes, so the same rule subtracts 512.
 * Requests pass through unchanged if the alignment is at most 512, or if they are smaller than the
 * threshold.
 *
 * The token of an aligned block is a record with the upstream's address, size and token, with which
 * the upstream block is freed. */
#include "resource/record_slab.h"
#include "resource/report.h"
#include "resource/resource.h"

struct aligned_config {
    size_t alignment, alignment_threshold;
};

struct aligned {
    struct rs_mr base;
    struct aligned_config set; /* the alignment is at least RS_BLOCK_ALIGNMENT */
    _Atomic uint64_t aligned_count;
    _Atomic size_t extra_bytes; /* bytes asked from upstream beyond the sizes of live blocks */
    /* The records of aligned blocks; each is the struct rs_allocation that upstream returned.
     * Protected by the lock. */
    struct rs_record_slab records;
};

_Static_assert(sizeof(struct rs_allocation) <= RS_RECORD_BYTES, "an allocation is a slab's record");

static bool passes_through(const struct aligned *aligned, size_t size_bytes)
{
    return size_bytes < aligned->set.alignment_threshold ||
           aligned->set.alignment == RS_BLOCK_ALIGNMENT;
}

static CUresult allocate_aligned(struct aligned *aligned, size_t size_bytes, CUstream stream,
                                 enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_allocation *record;
    size_t room_bytes;
    CUresult result;

    if (!rs_round_up(size_bytes, aligned->set.alignment, &room_bytes) ||
        __builtin_add_overflow(room_bytes, aligned->set.alignment - RS_BLOCK_ALIGNMENT,
                               &room_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    record = rs_record_slab_take_alone(&aligned->records, &aligned->base.lock);
    if (!record)
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = rs_mr_allocate_with(aligned->base.upstream[0], room_bytes, stream, effort, record);
    if (result != CUDA_SUCCESS) {
        rs_record_slab_give_alone(&aligned->records, &aligned->base.lock, record);
        return result;
    }
    *out = (struct rs_allocation){
        .address =
            (record->address + aligned->set.alignment - 1) & -(CUdeviceptr)aligned->set.alignment,
        .size_bytes = size_bytes,
        .token = record,
    };
    RS_ASSERT(out->address + size_bytes <= record->address + record->size_bytes);
    atomic_fetch_add_explicit(&aligned->aligned_count, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&aligned->extra_bytes, room_bytes - size_bytes, memory_order_relaxed);
    return CUDA_SUCCESS;
}

static CUresult aligned_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                 enum rs_effort effort, struct rs_allocation *out)
{
    struct aligned *aligned = RS_MR_AS(aligned, mr);

    if (passes_through(aligned, size_bytes))
        return rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);
    return rs_effort_result(effort, allocate_aligned(aligned, size_bytes, stream, effort, out));
}

static CUresult aligned_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                   CUstream stream)
{
    struct aligned *aligned = RS_MR_AS(aligned, mr);
    struct rs_allocation *record = allocation->token;
    CUresult result;

    if (passes_through(aligned, allocation->size_bytes))
        return rs_mr_deallocate(mr->upstream[0], allocation, stream);
    result = rs_mr_deallocate(mr->upstream[0], record, stream);
    if (result != CUDA_SUCCESS)
        return result;
    atomic_fetch_sub_explicit(&aligned->extra_bytes, record->size_bytes - allocation->size_bytes,
                              memory_order_relaxed);
    rs_record_slab_give_alone(&aligned->records, &aligned->base.lock, record);
    return CUDA_SUCCESS;
}

static void aligned_end(struct rs_mr *mr, bool memory_is_gone)
{
    (void)memory_is_gone; /* this adaptor holds no memory */
    rs_record_slab_destroy(&RS_MR_AS(aligned, mr)->records);
}

static const struct rs_counter_row aligned_counters[] = {
    RS_COUNTER_ROW("aligned", TOTAL, COUNT, struct aligned, aligned_count),
    RS_COUNTER_ROW("extra", LIVE, BYTES, struct aligned, extra_bytes),
    RS_COUNTER_END,
};

static const struct rs_mr_ops aligned_ops = {
    .allocate = aligned_allocate,
    .deallocate = aligned_deallocate,
    .end = aligned_end,
    .counters = aligned_counters,
};

static int aligned_init(struct rs_mr *mr, const void *config)
{
    struct aligned_config *set = &RS_MR_AS(aligned, mr)->set;

    (void)config;
    set->alignment = rs_max(set->alignment, RS_BLOCK_ALIGNMENT);
    return 0;
}

static bool aligned_validate(const void *config, const struct rs_validation *of)
{
    const struct aligned_config *settings = config;
    char text[RS_SIZE_TEXT_BYTES];

    return rs_is_power_of_two(settings->alignment) ||
           RS_REFUSE(of, "the alignment %s is not a power of two",
                     rs_size_format(settings->alignment, text));
}

static const struct rs_option aligned_options[] = {
    RS_OPTION_SIZE_ROW(struct aligned_config, alignment, "512",
                       "alignment of the blocks in bytes, a power of two; up to 512 (the default) "
                       "nothing changes, since every block is aligned to 512 bytes anyway",
                       .minimum = 1),
    RS_OPTION_SIZE_ROW(struct aligned_config, alignment_threshold, "0",
                       "the smallest request that is aligned; smaller requests go to the upstream "
                       "unchanged; 0 (the default): every request is aligned"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_aligned = {
    .name = "aligned",
    .summary = "aligns blocks to a given power of two above 512 bytes",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .config_bytes = sizeof(struct aligned_config),
    .options = aligned_options,
    .validate = aligned_validate,
};

RS_MR_CLASS_WITH_SET(aligned, struct aligned, aligned_ops, aligned_init);
