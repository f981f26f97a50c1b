/* SPDX-License-Identifier: Apache-2.0 */
/* bin: a bin of binning that uses a resource of its own, its upstream, in place of fixed_size
 * blocks.  RMM's binning_memory_resource::add_bin.  It refuses requests that are too large for it.
 */
#include "resource/allocator/bin.h"

#include "resource/resource.h"

#include <errno.h>
#include <stdlib.h>

struct bin_config {
    size_t size;
};

struct bin {
    struct rs_mr base;
    size_t bytes;
};

static struct bin *bin_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct bin, base);
}

size_t rs_bin_bytes(struct rs_mr *mr)
{
    return bin_of(mr)->bytes;
}

static CUresult bin_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                             enum rs_effort effort, struct rs_allocation *out)
{
    return size_bytes > bin_of(mr)->bytes
               ? rs_effort_result(effort, CUDA_ERROR_OUT_OF_MEMORY)
               : rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);
}

static bool bin_deallocates_in_order(struct rs_mr *mr)
{
    return rs_mr_deallocates_in_order(mr->upstream[0]);
}

static void bin_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    (void)memory_is_gone;
    free(bin_of(mr));
}

static const struct rs_mr_ops bin_ops = {
    .allocate = bin_allocate,
    .deallocate = rs_mr_forward_deallocate,
    .deallocates_in_order = bin_deallocates_in_order,
    .destroy = bin_destroy,
};

static int bin_create(const struct rs_environment *environment, const void *config,
                      struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct bin_config *settings = config;
    struct bin *bin = calloc(1, sizeof(*bin));

    (void)environment;
    if (!bin)
        return -ENOMEM;
    rs_mr_init(&bin->base, &bin_ops, &rs_mr_descriptor_bin, upstream);
    if (!rs_round_up(settings->size, RS_BLOCK_ALIGNMENT, &bin->bytes)) {
        free(bin);
        return -EINVAL;
    }
    *out = &bin->base;
    return 0;
}

static bool bin_validate(const void *config, const struct rs_environment *environment,
                         const struct rs_source *source, struct rs_diagnostics *diagnostics)
{
    const struct bin_config *settings = config;

    (void)environment;
    if (settings->size != SIZE_MAX)
        return true;
    rs_diagnose(diagnostics, source, NULL, "bin needs a size, as in size=1MiB");
    return false;
}

static const struct rs_option bin_options[] = {
    RS_OPTION_SIZE_ROW(struct bin_config, size, "none",
                       "largest request that it serves, rounded up to 512 bytes; must be given",
                       .none = true, .minimum = 1, .maximum = RS_SIZE_ADDRESSABLE,
                       .aliases = {{"allocation_size", RS_OPTION_SIZE}}),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_bin = {
    .name = "bin",
    .aliases = {"add_bin"},
    .summary = "a bin of `binning` with a resource of its own; alone it refuses larger requests",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .passes_allocations = true,
    .config_bytes = sizeof(struct bin_config),
    .options = bin_options,
    .validate = bin_validate,
    .create = bin_create,
};
