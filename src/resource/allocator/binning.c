/* SPDX-License-Identifier: Apache-2.0 */
/* binning: small requests are served by bins, each with blocks of one size, and larger ones by the
 * upstream.  RMM's binning_memory_resource, whose bins are fixed_size resources over the same
 * upstream.
 *
 * A bin may use a resource of its own instead (`bin`), which is one more upstream.
 *
 * RMM takes 128 blocks per bin at once, 992 MiB for bins of 256 KiB to 4 MiB.  Here a bin takes 8,
 * and only when it is first used. */
#include "resource/allocator/bin.h"
#include "resource/allocator/fixed_size.h"
#include "resource/report.h"
#include "resource/resource.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct binning_config {
    size_t minimum_size, maximum_size;
    uint64_t blocks_to_preallocate;
    struct rs_sizes bins;
};

/* A block of a larger bin would exceed any device's memory. */
enum { BIN_BITS_MAX = 40 };
#define BIN_BYTES_MAX (1ull << BIN_BITS_MAX)

enum { BITS = 64, BINS_MAX = BIN_BITS_MAX + 1 + RS_SIZES_MAX + RS_MR_UPSTREAMS_MAX };

struct bin {
    size_t bytes; /* serves requests up to this size */
    struct rs_mr *resource;
    bool is_upstream; /* an upstream of this resource too: a walk over the stack reaches it without
                         our help */
};

struct binning {
    struct rs_mr base;
    unsigned bin_count;
    unsigned char first[BITS + 1]; /* indexed by bits_of: the first bin that may be large enough */
    struct bin bins[BINS_MAX + 1]; /* sorted by size; the entry behind the last bin is the upstream,
                                      for all sizes */
};

static struct binning *binning_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct binning, base);
}

/* The exponent of the smallest power of two that is not below size_bytes. */
static unsigned bits_of(size_t size_bytes)
{
    return size_bytes <= 1 ? 0 : 64u - (unsigned)__builtin_clzl(size_bytes - 1);
}

/* Returns the resource that serves requests of this size; a free asks again with the same size. */
static struct rs_mr *resource_for(struct binning *binning, size_t size_bytes)
{
    const struct bin *bin = &binning->bins[binning->first[bits_of(size_bytes)]];

    while (bin->bytes < size_bytes)
        bin++;
    RS_ASSERT_SLOW(bin <= &binning->bins[binning->bin_count] && bin->resource);
    return bin->resource;
}

/* Trims the upstream, and each bin, which keeps keep_bytes. */
static size_t binning_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct binning *binning = binning_of(mr);
    size_t returned_bytes = 0;
    bool asked = false;

    for (unsigned i = 0; i < binning->bin_count; i++) {
        returned_bytes += rs_mr_trim_with(binning->bins[i].resource, trim);
        asked = asked || !binning->bins[i].is_upstream;
    }
    return asked ? returned_bytes : returned_bytes + rs_mr_trim_with(mr->upstream[0], trim);
}

/* Bins are trimmed on CUDA_ERROR_OUT_OF_MEMORY only.  An RS_EFFORT_BEST request that finds the
 * first upstream full gets CUDA_ERROR_NOT_READY: a trim for it would also give back memory of the
 * second one. */
static CUresult binning_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                 enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_mr *resource = resource_for(binning_of(mr), size_bytes);
    CUresult result = rs_mr_allocate_with(resource, size_bytes, stream, effort, out);

    if (result == CUDA_ERROR_OUT_OF_MEMORY && (effort & RS_EFFORT_LITTLE)) {
        effort = rs_effort_without(effort, RS_EFFORT_LITTLE);
        result = rs_mr_allocate_with(resource, size_bytes, stream, effort, out);
    }
    /* other bins hold free memory that this request lacks */
    if (result == CUDA_ERROR_OUT_OF_MEMORY && binning_trim(mr, &(struct rs_trim){0}) > 0)
        result = rs_mr_allocate_with(resource, size_bytes, stream, effort, out);
    return result;
}

static CUresult binning_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                   CUstream stream)
{
    return rs_mr_deallocate(resource_for(binning_of(mr), allocation->size_bytes), allocation,
                            stream);
}

static size_t binning_idle_bytes(struct rs_mr *mr)
{
    struct binning *binning = binning_of(mr);
    size_t idle_bytes = 0;

    for (unsigned i = 0; i < binning->bin_count; i++) /* not the upstreams' */
        if (!binning->bins[i].is_upstream)
            idle_bytes += binning->bins[i].resource->ops.idle_bytes(binning->bins[i].resource);
    return idle_bytes;
}

static size_t binning_free_blocks(struct rs_mr *mr)
{
    struct binning *binning = binning_of(mr);
    size_t blocks = 0;

    for (unsigned i = 0; i < binning->bin_count; i++) /* not the upstreams' */
        if (!binning->bins[i].is_upstream)
            blocks += binning->bins[i].resource->ops.free_blocks(binning->bins[i].resource);
    return blocks;
}

/* Reports the bins' counters, which fold into those of one fixed_size. */
static void binning_report(struct rs_mr *mr, struct rs_report *report)
{
    struct binning *binning = binning_of(mr);

    rs_report_add(report, mr->descriptor->name, "bins", RS_COUNTER_LIVE, RS_UNIT_COUNT,
                  binning->bin_count);
    for (unsigned i = 0; i < binning->bin_count; i++)
        if (!binning->bins[i].is_upstream)
            binning->bins[i].resource->ops.report(binning->bins[i].resource, report);
}

static bool binning_check(struct rs_mr *mr)
{
    struct binning *binning = binning_of(mr);
    bool good = binning->bins[binning->bin_count].bytes == SIZE_MAX;

    for (unsigned i = 0; i < binning->bin_count; i++) {
        const struct bin *bin = &binning->bins[i];
        good = bin->bytes < bin[1].bytes && good;
        if (!bin->is_upstream)
            good = bin->resource->ops.check(bin->resource) && good;
    }
    return good;
}

static void binning_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct binning *binning = binning_of(mr);

    for (unsigned i = 0; i < binning->bin_count; i++) /* not the upstreams */
        if (!binning->bins[i].is_upstream)
            binning->bins[i].resource->ops.destroy(binning->bins[i].resource, memory_is_gone);
    free(binning);
}

static const struct rs_mr_ops binning_ops = {
    .allocate = binning_allocate,
    .deallocate = binning_deallocate,
    .destroy = binning_destroy,
    .trim = binning_trim,
    .idle_bytes = binning_idle_bytes,
    .free_blocks = binning_free_blocks,
    .report = binning_report,
    .check = binning_check,
};

/* The index at which a bin of this size stands or is to be inserted. */
static unsigned place_of(const struct binning *binning, size_t size_bytes)
{
    unsigned i = 0;

    while (binning->bins[i].bytes < size_bytes)
        i++;
    return i;
}

static void insert_bin(struct binning *binning, unsigned at, struct bin bin)
{
    memmove(&binning->bins[at + 1], &binning->bins[at],
            (binning->bin_count + 1 - at) * sizeof(bin)); /* the upstream stays last */
    binning->bins[at] = bin;
    binning->bin_count++;
}

/* Adds a bin of blocks of this size, unless there is one. */
static int add_bin(struct binning *binning, const struct rs_environment *environment,
                   size_t size_bytes, uint64_t blocks)
{
    struct rs_environment later = *environment;
    struct rs_fixed_size_config settings = {.blocks_to_preallocate = blocks};
    struct bin bin = {.is_upstream = false};
    unsigned at;
    int failed;

    later.first_on_device = false; /* bins take no memory at creation */
    if (!rs_round_up(size_bytes, RS_BLOCK_ALIGNMENT, &bin.bytes))
        return -EINVAL;
    at = place_of(binning, bin.bytes);
    if (binning->bins[at].bytes == bin.bytes)
        return 0;
    settings.block_size = bin.bytes;
    failed = rs_mr_descriptor_fixed_size.create(&later, &settings, binning->base.upstream,
                                                &bin.resource);
    if (!failed)
        insert_bin(binning, at, bin);
    return failed;
}

/* Adds a bin with a resource of its own.  Of two bins of one size the first serves, as in RMM. */
static void add_branch(struct binning *binning, struct rs_mr *branch)
{
    struct bin bin = {rs_bin_bytes(branch), branch, true};
    unsigned at = place_of(binning, bin.bytes);

    if (binning->bins[at].bytes != bin.bytes)
        insert_bin(binning, at, bin);
}

static int add_bins(struct binning *binning, const struct rs_environment *environment,
                    const struct binning_config *settings)
{
    int failed = 0;

    for (size_t i = 1; i < RS_MR_UPSTREAMS_MAX && binning->base.upstream[i]; i++)
        add_branch(binning, binning->base.upstream[i]);
    for (size_t i = 0; i < settings->bins.count && !failed; i++)
        failed =
            add_bin(binning, environment, settings->bins.bytes[i], settings->blocks_to_preallocate);
    if (settings->maximum_size == SIZE_MAX)
        return failed;
    for (unsigned bit = bits_of(rs_max(settings->minimum_size, RS_BLOCK_ALIGNMENT));
         bit <= bits_of(settings->maximum_size) && !failed; bit++)
        failed = add_bin(binning, environment, (size_t)1 << bit, settings->blocks_to_preallocate);
    return failed;
}

static void index_bins(struct binning *binning)
{
    for (unsigned bits = 1; bits <= BITS; bits++)
        binning->first[bits] = (unsigned char)place_of(binning, ((size_t)1 << (bits - 1)) + 1);
}

static int binning_create(const struct rs_environment *environment, const void *config,
                          struct rs_mr *const *upstream, struct rs_mr **out)
{
    struct binning *binning = calloc(1, sizeof(*binning));
    int failed;

    if (!binning)
        return -ENOMEM;
    rs_mr_init(&binning->base, &binning_ops, &rs_mr_descriptor_binning, upstream);
    binning->bins[0] = (struct bin){SIZE_MAX, upstream[0], true};
    failed = add_bins(binning, environment, config);
    if (failed) {
        binning_destroy(&binning->base, false);
        return failed;
    }
    index_bins(binning);
    *out = &binning->base;
    return 0;
}

static bool binning_validate(const void *config, const struct rs_environment *environment,
                             const struct rs_source *source, struct rs_diagnostics *diagnostics)
{
    const struct binning_config *settings = config;
    const char *wrong = NULL;

    (void)environment;
    if (settings->minimum_size == SIZE_MAX && settings->maximum_size == SIZE_MAX)
        return true; /* none of them, as in RMM */
    if (settings->minimum_size == SIZE_MAX || settings->maximum_size == SIZE_MAX)
        wrong = "binning needs both minimum_size and maximum_size, or none";
    else if (!rs_is_power_of_two(settings->minimum_size) ||
             !rs_is_power_of_two(settings->maximum_size))
        wrong = "bin sizes are powers of two, as in 256KiB and 4MiB";
    else if (settings->maximum_size < settings->minimum_size)
        wrong = "binning's maximum_size is below its minimum_size";
    if (wrong)
        rs_diagnose(diagnostics, source, NULL, "%s", wrong);
    return !wrong;
}

static const struct rs_option binning_options[] = {
    RS_OPTION_SIZE_ROW(struct binning_config, minimum_size, "none",
                       "block size of the smallest bin, a power of two", .none = true, .minimum = 1,
                       .maximum = BIN_BYTES_MAX,
                       .aliases = {{"min_size_exponent", RS_OPTION_EXPONENT}}),
    RS_OPTION_SIZE_ROW(struct binning_config, maximum_size, "none",
                       "block size of the largest bin; larger requests go to the upstream",
                       .none = true, .minimum = 1, .maximum = BIN_BYTES_MAX,
                       .aliases = {{"max_size_exponent", RS_OPTION_EXPONENT}}),
    RS_OPTION_SIZES_ROW(struct binning_config, bins, "",
                        "further bins, by their block sizes, as in 256KiB+300000+1MiB; each is "
                        "rounded up to 512 bytes; one with a resource of its own stands behind the "
                        "upstream instead, as in bin(arena(cuda), size=1MiB)",
                        .minimum = 1, .maximum = BIN_BYTES_MAX),
    RS_OPTION_COUNT_ROW(struct binning_config, blocks_to_preallocate, "8",
                        "blocks that a bin takes from upstream at a time, first when it is used",
                        .minimum = 1, .maximum = 1 << 20),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_binning = {
    .name = "binning",
    .summary = "small requests from bins of equal blocks, others from upstream",
    .upstream_count = 1,
    .branch = &rs_mr_descriptor_bin,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct binning_config),
    .options = binning_options,
    .unit_option = "minimum_size",
    .validate = binning_validate,
    .create = binning_create,
};
