/* SPDX-License-Identifier: Apache-2.0 */
/* Bins: each serves requests up to a size, either with blocks of that size or from a resource of
 * its own.
 *
 *   fixed_size  one bin of blocks: RMM's fixed_size_memory_resource
 *   binning     several bins, and an upstream for larger requests: RMM's binning_memory_resource
 *   bin         one bin with a resource of its own, a further upstream of binning: RMM's add_bin
 *
 * RMM hands out the block that was freed first, so a program walks through all blocks it ever had.
 * Here it is the block that was freed last, which is still in the caches.  RMM takes 128 blocks for
 * each bin of binning at once, 992 MiB for 256 KiB to 4 MiB.  Here a bin of binning takes 8, and
 * only when it is first used. */
#include "resource/report.h"
#include "resource/resource.h"
#include "shared/published.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BIN_BYTES_MAX (1ull << 40) /* a larger block would exceed any device's memory */
enum {
    /* 41: the powers of two up to BIN_BYTES_MAX. */
    BINS_MAX = 41 + RS_SIZES_MAX + RS_MR_UPSTREAMS_MAX,
    BLOCKS_MAX = 1 << 20, /* the most blocks of a chunk, since their records take host memory */
    GROWTH_WAIT_NS = 500000000,
};

/* A block's record; it is the allocation's token. */
struct slot {
    struct chunk *chunk;
    struct slot *next; /* the next free slot of the chunk */
    bool is_live;
};

/* An upstream block that is cut into the blocks of one bin. */
struct chunk {
    struct chunk *next, *next_open;
    struct rs_allocation upstream;
    size_t slot_count, live_count; /* slot_count is 0 while the chunk is being given back */
    struct slot *free_slots;
    struct slot slots[];
};

struct bin {
    /* The bin serves requests up to this size, which is also the size of its blocks. */
    size_t bytes;
    /* The resource that serves the bin's requests; NULL: blocks serve them. */
    struct rs_mr *resource;

    struct rs_mutex lock; /* protects the fields below; never held around an upstream call */
    /* Signalled when a growth has ended, for threads that wait to look again. */
    pthread_cond_t settled;
    bool is_growing;
    struct chunk *chunks, *open; /* all chunks, and those with a free slot */
    /* Written under the lock, also read without it (base/lock.h). */
    _Atomic size_t held_bytes, live_bytes;
    size_t peak_held_bytes, chunk_count;
    uint64_t growths, chunk_returns, allocations, failures;
};

struct bins {
    struct rs_mr base;
    size_t blocks_per_chunk;
    unsigned count;
    struct rs_mr *resources[BINS_MAX]; /* the `resource` of each bin */
    /* The `bytes` of each bin, ascending, in an array of their own: so a search reads no cache line
     * that has a lock, which other threads write. */
    size_t bytes[BINS_MAX];
    struct bin *bins;
};

/* Returns the bin for requests of this size, or the last one, which refuses a size that is too
 * large.  A free finds its bin by the same size. */
static struct bin *bin_for(struct bins *bins, size_t size_bytes)
{
    unsigned i = 0;

    while (bins->bytes[i] < size_bytes && i + 1 < bins->count)
        i++;
    return &bins->bins[i];
}

/* ---- chunks and slots of a bin; all under its lock ---- */

static CUdeviceptr slot_address(const struct bin *bin, const struct slot *slot)
{
    return slot->chunk->upstream.address + (size_t)(slot - slot->chunk->slots) * bin->bytes;
}

/* Takes a slot of the first open chunk (one with a free slot), so that chunks behind it can become
 * wholly free.  Returns false when no slot is free. */
static bool take_slot(struct bin *bin, size_t size_bytes, struct rs_allocation *out)
{
    struct chunk *chunk = bin->open;
    struct slot *slot = chunk ? chunk->free_slots : NULL;

    if (!slot)
        return false;
    RS_ASSERT(!slot->is_live && chunk->live_count < chunk->slot_count);
    chunk->free_slots = slot->next;
    if (!chunk->free_slots)
        bin->open = chunk->next_open;
    slot->is_live = true;
    chunk->live_count++;
    rs_counter_add(&bin->live_bytes, bin->bytes);
    *out = (struct rs_allocation){slot_address(bin, slot), size_bytes, slot, NULL};
    return true;
}

static void give_slot(struct bin *bin, struct slot *slot)
{
    struct chunk *chunk = slot->chunk;

    RS_ASSERT(slot->is_live && chunk->live_count > 0 && bin->live_bytes >= bin->bytes);
    if (!chunk->free_slots) {
        chunk->next_open = bin->open;
        bin->open = chunk;
    }
    slot->is_live = false;
    slot->next = chunk->free_slots;
    chunk->free_slots = slot;
    chunk->live_count--;
    rs_counter_subtract(&bin->live_bytes, bin->bytes);
}

/* Adds a chunk with all of its slots free: a new one, or one that upstream refused to take back. */
static void add_cut_chunk(struct bin *bin, struct chunk *chunk)
{
    RS_ASSERT(chunk->live_count == 0 && chunk->slot_count == 0);
    RS_ASSERT(chunk->upstream.size_bytes % bin->bytes == 0);
    chunk->slot_count = chunk->upstream.size_bytes / bin->bytes;
    chunk->free_slots = NULL;
    for (struct slot *slot = &chunk->slots[chunk->slot_count]; slot-- > chunk->slots;) {
        *slot = (struct slot){chunk, chunk->free_slots, false};
        chunk->free_slots = slot;
    }
    chunk->next = bin->chunks;
    chunk->next_open = bin->open;
    bin->chunks = bin->open = chunk;
    bin->chunk_count++;
    rs_counter_add(&bin->held_bytes, chunk->upstream.size_bytes);
    bin->peak_held_bytes = rs_max(bin->peak_held_bytes, rs_counter_get(&bin->held_bytes));
}

/* Takes chunks without a live block, except for keep_bytes of them, out of the bin, and returns
 * them as a list by next_open.  The account notes these chunks as being returned: they are no
 * longer idle here and not yet the driver's, and another thread that is refused meanwhile would
 * take them for live memory. */
static struct chunk *detach_unused_chunks(struct bins *bins, struct bin *bin, size_t keep_bytes)
{
    struct chunk *chunk, *detached = NULL;

    for (struct chunk **at = &bin->open; (chunk = *at);) {
        size_t free_bytes = chunk->live_count > 0 ? 0 : chunk->upstream.size_bytes;

        if (free_bytes <= keep_bytes) {
            keep_bytes -= free_bytes;
            at = &chunk->next_open;
            continue;
        }
        rs_account_begin_return(bins->base.environment->account, free_bytes);
        rs_counter_subtract(&bin->held_bytes, free_bytes);
        bin->chunk_count--;
        *at = chunk->next_open;
        chunk->next_open = detached;
        detached = chunk;
        chunk->slot_count = 0;
    }
    for (struct chunk **at = &bin->chunks; detached && *at;)
        if ((*at)->slot_count == 0)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    return detached;
}

/* ---- growth ---- */

/* Takes a chunk of blocks_per_chunk blocks from upstream; after a refusal one of fewer blocks, down
 * to one.  It asks on the NULL stream, since chunks serve all streams.  Called and left with the
 * lock held, which is released in between.  All host memory is taken first, so no upstream call has
 * to be undone. */
static CUresult grow_bin(struct bins *bins, struct bin *bin, enum rs_effort effort)
{
    size_t blocks = bins->blocks_per_chunk;
    struct chunk *chunk = calloc(1, sizeof(*chunk) + blocks * sizeof(struct slot));
    CUresult result;

    if (!chunk)
        return CUDA_ERROR_OUT_OF_MEMORY;
    bin->is_growing = true;
    rs_mutex_unlock(&bin->lock);
    do {
        result = rs_mr_allocate_with(bins->base.upstream[0], blocks * bin->bytes, NULL, effort,
                                     &chunk->upstream);
        blocks /= 2;
    } while ((result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_READY) && blocks > 0);
    rs_mutex_lock(&bin->lock);
    bin->is_growing = false;
    pthread_cond_broadcast(&bin->settled);
    if (result != CUDA_SUCCESS) {
        free(chunk);
        return result;
    }
    add_cut_chunk(bin, chunk);
    bin->growths++;
    return CUDA_SUCCESS;
}

/* Takes a slot, and grows the bin if none is free.  First waits for another thread's growth:
 * sixteen threads that find no block at the same time must not take sixteen chunks.  The wait is
 * bounded, since upstream may wait for the GPU, and the GPU for this thread. */
static CUresult allocate_of_bin(struct bins *bins, struct bin *bin, size_t size_bytes,
                                enum rs_effort effort, struct rs_allocation *out)
{
    uint64_t until_ns;
    CUresult result;

    if (size_bytes > bin->bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (take_slot(bin, size_bytes, out))
        return CUDA_SUCCESS;
    until_ns = rs_clock_ns() + GROWTH_WAIT_NS;
    while (bin->is_growing && rs_condition_wait_until_ns(&bin->settled, &bin->lock, until_ns) == 0)
        ;
    if (take_slot(bin, size_bytes, out))
        return CUDA_SUCCESS;
    result = grow_bin(bins, bin, effort);
    /* takes a slot even after a failure, since other threads may have freed or grown meanwhile */
    return take_slot(bin, size_bytes, out) ? CUDA_SUCCESS : result;
}

/* ---- the operations ---- */

/* The stream does not matter, since no work uses the free blocks any more (reuse.c).
 * RS_EFFORT_LITTLE is not passed on, since a growth is always one chunk, and each of its blocks can
 * serve a request.  A refused RS_EFFORT_HELD request does not count as a failure, since one with
 * more effort follows it. */
static CUresult bins_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                              enum rs_effort effort, struct rs_allocation *out)
{
    struct bin *bin = bin_for(RS_MR_AS(bins, mr), size_bytes);
    CUresult result;

    if (bin->resource && size_bytes <= bin->bytes)
        return rs_mr_allocate_with(bin->resource, size_bytes, stream, effort, out);
    rs_mutex_lock(&bin->lock);
    result = allocate_of_bin(RS_MR_AS(bins, mr), bin, size_bytes, effort & ~RS_EFFORT_LITTLE, out);
    result = rs_effort_result(effort, result);
    bin->allocations += result == CUDA_SUCCESS;
    bin->failures += result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
    rs_mutex_unlock(&bin->lock);
    return result;
}

static CUresult bins_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                CUstream stream)
{
    struct bin *bin = bin_for(RS_MR_AS(bins, mr), allocation->size_bytes);

    if (bin->resource)
        return rs_mr_deallocate(bin->resource, allocation, stream);
    rs_mutex_lock(&bin->lock);
    RS_ASSERT(slot_address(bin, allocation->token) == allocation->address);
    give_slot(bin, allocation->token);
    rs_mutex_unlock(&bin->lock);
    return CUDA_SUCCESS;
}

static size_t give_chunks_back(struct bins *bins, struct bin *bin, size_t keep_bytes)
{
    size_t returned_bytes = 0;

    rs_mutex_lock(&bin->lock);
    for (struct chunk *chunk = detach_unused_chunks(bins, bin, keep_bytes), *next; chunk;
         chunk = next) {
        size_t size_bytes = chunk->upstream.size_bytes;
        CUresult result;

        next = chunk->next_open;
        rs_mutex_unlock(&bin->lock);
        result = rs_mr_deallocate(bins->base.upstream[0], &chunk->upstream, NULL);
        rs_mutex_lock(&bin->lock);
        if (result == CUDA_SUCCESS) {
            returned_bytes += size_bytes;
            bin->chunk_returns++;
            free(chunk);
        } else {
            add_cut_chunk(bin, chunk); /* upstream refused it, so it stays ours */
        }
        rs_account_end_return(bins->base.environment->account, size_bytes);
    }
    rs_mutex_unlock(&bin->lock);
    return returned_bytes;
}

static bool bin_check(struct bin *bin)
{
    size_t held_bytes = 0, live = 0, chunks = 0, open = 0;
    RS_MUTEX_GUARD(&bin->lock);

    for (const struct chunk *chunk = bin->chunks; chunk; chunk = chunk->next, chunks++) {
        size_t slots = chunk->live_count;

        for (const struct slot *slot = chunk->free_slots; slot; slot = slot->next)
            if (slot->is_live || slot->chunk != chunk || ++slots > chunk->slot_count)
                return false;
        if (slots != chunk->slot_count)
            return false;
        held_bytes += chunk->upstream.size_bytes;
        live += chunk->live_count;
        open += chunk->free_slots != NULL;
    }
    for (const struct chunk *chunk = bin->open; chunk; chunk = chunk->next_open)
        if (!chunk->free_slots || open-- == 0)
            return false;
    return open == 0 && chunks == bin->chunk_count && held_bytes == bin->held_bytes &&
           live * bin->bytes == bin->live_bytes;
}

static bool bins_check(struct rs_mr *mr)
{
    struct bins *bins = RS_MR_AS(bins, mr);

    for (unsigned i = 0; i < bins->count; i++)
        if ((i > 0 && bins->bytes[i - 1] >= bins->bytes[i]) || !bin_check(&bins->bins[i]))
            return false;
    return true;
}

static size_t bins_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct bins *bins = RS_MR_AS(bins, mr);
    size_t returned_bytes = 0;

    for (unsigned i = 0; i < bins->count; i++)
        returned_bytes += give_chunks_back(bins, &bins->bins[i], trim->keep_bytes);
    RS_ASSERT_SLOW(bins_check(mr));
    for (size_t i = 0; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        returned_bytes += rs_mr_trim_with(mr->upstream[i], trim);
    return returned_bytes;
}

static size_t bins_idle_bytes(struct rs_mr *mr)
{
    const struct bins *bins = RS_MR_AS(bins, mr);
    size_t idle_bytes = 0;

    for (unsigned i = 0; i < bins->count; i++)
        idle_bytes += rs_counter_idle(&bins->bins[i].held_bytes, &bins->bins[i].live_bytes);
    return idle_bytes;
}

static size_t bins_free_blocks(struct rs_mr *mr)
{
    const struct bins *bins = RS_MR_AS(bins, mr);
    size_t blocks = 0;

    for (const struct bin *bin = bins->bins; bin < bins->bins + bins->count; bin++)
        blocks += rs_counter_idle(&bin->held_bytes, &bin->live_bytes) / bin->bytes;
    return blocks;
}

/* Each bin that has no `resource` adds the counters that a fixed_size resource has; the report sums
 * them up over the bins. */
static void bins_report(struct rs_mr *mr, struct rs_report *report)
{
    const char *name = rs_mr_descriptor_fixed_size.name;
    struct bins *bins = RS_MR_AS(bins, mr);

#define ADD(counter, kind, unit, value)                                                            \
    rs_report_add_field(report, name, counter, RS_COUNTER_##kind, RS_UNIT_##unit, value)
    if (mr->descriptor == &rs_mr_descriptor_binning) /* the last bin of `binning` is its upstream */
        rs_report_add(report, "binning", "bins", RS_COUNTER_LIVE, RS_UNIT_COUNT, bins->count - 1);
    for (struct bin *bin = bins->bins; bin < bins->bins + bins->count; bin++) {
        if (bin->resource || !rs_mutex_lock_bounded(&bin->lock, name))
            continue;
        ADD("held", LIVE, BYTES, bin->held_bytes);
        ADD("held_peak", PEAK, BYTES, bin->peak_held_bytes);
        ADD("live", LIVE, BYTES, bin->live_bytes);
        ADD("chunks", LIVE, COUNT, bin->chunk_count);
        ADD("growths", TOTAL, COUNT, bin->growths);
        ADD("chunk_returns", TOTAL, COUNT, bin->chunk_returns);
        ADD("allocations", TOTAL, COUNT, bin->allocations);
        ADD("failures", TOTAL, COUNT, bin->failures);
        rs_mutex_unlock(&bin->lock);
    }
#undef ADD
}

static void bins_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct bins *bins = RS_MR_AS(bins, mr);

    for (struct bin *bin = bins->bins; bin < bins->bins + bins->count; bin++) {
        for (struct chunk *chunk; (chunk = bin->chunks);) {
            bin->chunks = chunk->next;
            if (!memory_is_gone)
                (void)rs_mr_deallocate(mr->upstream[0], &chunk->upstream, NULL);
            free(chunk);
        }
        pthread_cond_destroy(&bin->settled);
        rs_mutex_destroy(&bin->lock);
    }
    rs_published_free(bins->bins);
}

static const struct rs_mr_ops bins_ops = {
    .allocate = bins_allocate,
    .deallocate = bins_deallocate,
    .end = bins_end,
    .trim = bins_trim,
    .idle_bytes = bins_idle_bytes,
    .free_blocks = bins_free_blocks,
    .report = bins_report,
    .check = bins_check,
};

/* ---- creation ---- */

/* Adds a bin for sizes up to size_bytes, rounded up as blocks are.  `resource` serves the bin; if
 * it is NULL, blocks do.  If two bins have the same size, the first one serves, as in RMM. */
static void plan_bin(struct bins *bins, size_t size_bytes, struct rs_mr *resource)
{
    unsigned i = bins->count, above;

    if (!rs_round_up(size_bytes, RS_BLOCK_ALIGNMENT, &size_bytes))
        size_bytes = SIZE_MAX;
    for (; i > 0 && bins->bytes[i - 1] >= size_bytes; i--)
        if (bins->bytes[i - 1] == size_bytes)
            return;
    above = bins->count++ - i;
    memmove(&bins->bytes[i + 1], &bins->bytes[i], above * sizeof(bins->bytes[0]));
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): the array has pointers */
    memmove(&bins->resources[i + 1], &bins->resources[i], above * sizeof(bins->resources[0]));
    bins->bytes[i] = size_bytes;
    bins->resources[i] = resource;
}

/* Makes the planned bins, which take no memory yet.  Returns 0 or -ENOMEM. */
static int make_bins(struct bins *bins, uint64_t blocks_per_chunk)
{
    bins->blocks_per_chunk = (size_t)blocks_per_chunk;
    bins->bins = rs_published_allocate(bins->count * sizeof(struct bin), RS_PUBLISHED_ALIGNMENT);
    if (!bins->bins) {
        bins->count = 0;
        return -ENOMEM;
    }
    for (unsigned i = 0; i < bins->count; i++) {
        bins->bins[i].bytes = bins->bytes[i];
        bins->bins[i].resource = bins->resources[i];
        rs_mutex_init(&bins->bins[i].lock, RS_RANK_RESOURCE);
        rs_condition_init(&bins->bins[i].settled);
    }
    return 0;
}

/* ---- fixed_size ---- */

struct fixed_size_config {
    size_t block_size;
    uint64_t blocks_to_preallocate;
};

/* Takes the first chunk if this stack takes the initial sizes (first_on_device).  A device without
 * room for it is no error: the first request tries to grow again, and is refused if there is still
 * no room. */
static int fixed_size_init(struct rs_mr *mr, const void *config)
{
    const struct fixed_size_config *settings = config;
    struct bins *bins = RS_MR_AS(bins, mr);
    CUresult result = CUDA_SUCCESS;

    mr->ops.excess_bytes = rs_mr_no_excess_bytes;
    plan_bin(bins, settings->block_size, NULL);
    if (make_bins(bins, settings->blocks_to_preallocate) != 0)
        return -ENOMEM;
    rs_mutex_lock(&bins->bins[0].lock);
    if (mr->environment->first_on_device)
        result = grow_bin(bins, &bins->bins[0], RS_EFFORT_FULL);
    rs_mutex_unlock(&bins->bins[0].lock);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : -EIO;
}

static bool fixed_size_validate(const void *config, const struct rs_validation *of)
{
    const struct fixed_size_config *settings = config;
    char block[RS_SIZE_TEXT_BYTES];
    size_t chunk_bytes;

    return (settings->block_size > 0 &&
            rs_round_up(settings->block_size, RS_BLOCK_ALIGNMENT, &chunk_bytes) &&
            !__builtin_mul_overflow(chunk_bytes, (size_t)settings->blocks_to_preallocate,
                                    &chunk_bytes)) ||
           RS_REFUSE(of,
                     "'fixed_size' cannot take %llu blocks (blocks_to_preallocate) of %s "
                     "(block_size) at a time: lower one of the two",
                     (unsigned long long)settings->blocks_to_preallocate,
                     rs_size_format(settings->block_size, block));
}

static const struct rs_option fixed_size_options[] = {
    RS_OPTION_SIZE_ROW(
        struct fixed_size_config, block_size, "1MiB",
        "size of every block, rounded up to a multiple of 512 bytes; larger requests are refused",
        .minimum = 1),
    RS_OPTION_COUNT_ROW(struct fixed_size_config, blocks_to_preallocate, "128",
                        "number of blocks that are taken from the upstream (the memory resource "
                        "inside the parentheses) at a time",
                        .minimum = 1, .maximum = BLOCKS_MAX),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_fixed_size = {
    .name = "fixed_size",
    .summary = "gives out blocks of one size, cut from larger blocks of its upstream",
    .upstream_count = 1,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct fixed_size_config),
    .options = fixed_size_options,
    .unit_option = "block_size",
    .validate = fixed_size_validate,
};

RS_MR_CLASS(fixed_size, struct bins, bins_ops, fixed_size_init);

/* ---- bin ---- */

struct bin_config {
    size_t size;
};

static bool bin_deallocates_in_order(struct rs_mr *mr)
{
    return rs_mr_deallocates_in_order(mr->upstream[0]);
}

static int bin_init(struct rs_mr *mr, const void *config)
{
    const struct bin_config *settings = config;
    struct bins *bins = RS_MR_AS(bins, mr);

    mr->ops.deallocates_in_order = bin_deallocates_in_order;
    plan_bin(bins, settings->size, mr->upstream[0]);
    return make_bins(bins, 1);
}

static bool bin_validate(const void *config, const struct rs_validation *of)
{
    const struct bin_config *settings = config;

    return settings->size != SIZE_MAX || RS_REFUSE(of, "'bin' needs a size, as in size=1MiB");
}

static const struct rs_option bin_options[] = {
    RS_OPTION_SIZE_ROW(struct bin_config, size, "none",
                       "the largest request that the bin serves, rounded up to a multiple of 512 "
                       "bytes",
                       .none = true, .is_required = true, .minimum = 1,
                       .maximum = RS_SIZE_ADDRESSABLE,
                       .aliases = {{"allocation_size", RS_OPTION_SIZE}}),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_bin = {
    .name = "bin",
    .aliases = {"add_bin"},
    .summary = "serves requests up to a given size from its upstream and refuses larger ones; for "
               "use inside `binning`, to give a bin a memory resource of its own",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .config_bytes = sizeof(struct bin_config),
    .options = bin_options,
    .validate = bin_validate,
};

RS_MR_CLASS(bin, struct bins, bins_ops, bin_init);

/* ---- binning ---- */

struct binning_config {
    size_t minimum_size, maximum_size;
    uint64_t blocks_to_preallocate;
    struct rs_sizes bins;
};

/* Trims all bins and upstreams after CUDA_ERROR_OUT_OF_MEMORY, since other bins may hold the free
 * memory that the request lacks.  There is no trim after CUDA_ERROR_NOT_READY, which an
 * RS_EFFORT_BEST request gets when a first upstream is full: the trim would also give back memory
 * of the second upstream. */
static CUresult binning_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                 enum rs_effort effort, struct rs_allocation *out)
{
    CUresult result = bins_allocate(mr, size_bytes, stream, effort, out);

    if (result == CUDA_ERROR_OUT_OF_MEMORY && bins_trim(mr, &(struct rs_trim){0}) > 0)
        result = bins_allocate(mr, size_bytes, stream, effort, out);
    return result;
}

static int binning_init(struct rs_mr *mr, const void *config)
{
    const struct binning_config *settings = config;
    struct bins *bins = RS_MR_AS(bins, mr);

    mr->ops.allocate = binning_allocate;
    for (size_t i = 1; i < RS_MR_UPSTREAMS_MAX && mr->upstream[i]; i++)
        plan_bin(bins, RS_MR_AS(bins, mr->upstream[i])->bytes[0], mr->upstream[i]);
    for (size_t i = 0; i < settings->bins.count; i++)
        plan_bin(bins, settings->bins.bytes[i], NULL);
    if (settings->maximum_size != SIZE_MAX)
        for (size_t bytes = rs_max(settings->minimum_size, RS_BLOCK_ALIGNMENT);
             bytes <= settings->maximum_size; bytes *= 2)
            plan_bin(bins, bytes, NULL);
    plan_bin(bins, SIZE_MAX, mr->upstream[0]);
    return make_bins(bins, settings->blocks_to_preallocate);
}

static bool binning_validate(const void *config, const struct rs_validation *of)
{
    const struct binning_config *settings = config;
    const char *wrong = NULL;

    if (settings->minimum_size == SIZE_MAX && settings->maximum_size == SIZE_MAX)
        return true; /* without these options there are no bins of powers of two, as in RMM */
    if (settings->minimum_size == SIZE_MAX || settings->maximum_size == SIZE_MAX)
        wrong = "'binning' needs both minimum_size and maximum_size, or neither";
    else if (!rs_is_power_of_two(settings->minimum_size) ||
             !rs_is_power_of_two(settings->maximum_size))
        wrong = "minimum_size and maximum_size of 'binning' must be powers of two, as in 256KiB "
                "and 4MiB";
    else if (settings->maximum_size < settings->minimum_size)
        wrong = "maximum_size of 'binning' is below its minimum_size";
    return !wrong || RS_REFUSE(of, "%s", wrong);
}

static const struct rs_option binning_options[] = {
    RS_OPTION_SIZE_ROW(
        struct binning_config, minimum_size, "none",
        "block size of the smallest power-of-two bin: there is a bin for each power of two from "
        "minimum_size to maximum_size; none (the default): there are no power-of-two bins",
        .none = true, .minimum = 1, .maximum = BIN_BYTES_MAX,
        .aliases = {{"min_size_exponent", RS_OPTION_EXPONENT}}),
    RS_OPTION_SIZE_ROW(struct binning_config, maximum_size, "none",
                       "block size of the largest power-of-two bin (see minimum_size); none (the "
                       "default): there are no power-of-two bins",
                       .none = true, .minimum = 1, .maximum = BIN_BYTES_MAX,
                       .aliases = {{"max_size_exponent", RS_OPTION_EXPONENT}}),
    RS_OPTION_SIZES_ROW(struct binning_config, bins, "none",
                        "block sizes of bins in addition to the power-of-two bins, as in "
                        "256KiB+300000+1MiB, rounded up to multiples of 512 "
                        "bytes; a bin that takes memory from a memory resource of its own is not "
                        "listed here, but written as in binning(cuda, bin(arena(cuda), size=1MiB))",
                        .minimum = 1, .maximum = BIN_BYTES_MAX),
    RS_OPTION_COUNT_ROW(
        struct binning_config, blocks_to_preallocate, "8",
        "number of blocks that a bin takes from the upstream (the memory resource inside the "
        "parentheses) at a time; it takes none until it is first used",
        .minimum = 1, .maximum = BLOCKS_MAX),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_binning = {
    .name = "binning",
    .summary = "serves small requests from bins, each with blocks of one size, and larger requests "
               "from its upstream",
    .upstream_count = 1,
    .branch = &rs_mr_descriptor_bin,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct binning_config),
    .options = binning_options,
    .unit_option = "minimum_size",
    .validate = binning_validate,
};

RS_MR_CLASS(binning, struct bins, bins_ops, binning_init);
