/* SPDX-License-Identifier: Apache-2.0 */
/* arena: RMM's word for a pool whose initial and maximum size are arena_size.  RMM's
 * arena_memory_resource has one block of a fixed size, and superblocks of it for each thread.
 * Superblocks were measured here: they refuse more on a full device than a pool of that size does,
 * hold more for what is live, and are slower with one thread and with four. */
#include "resource/allocator/pool.h"

struct arena_config {
    size_t arena_size;
    bool dump_log_on_failure;
};

enum { ARENA_LEAST_BYTES = 1 << 20 };

/* A share of the free memory is resolved when the arena is made: it may be below the option's
 * bound, and no multiple of 512. */
static size_t arena_bytes(const struct arena_config *settings)
{
    return rs_max(rs_round_down(settings->arena_size, RS_BLOCK_ALIGNMENT),
                  (size_t)ARENA_LEAST_BYTES);
}

static int arena_create(const struct rs_environment *environment, const void *config,
                        struct rs_mr *const *upstream, struct rs_mr **out)
{
    size_t bytes = arena_bytes(config);
    struct rs_pool_config pool = {
        .initial_size = bytes, .maximum_size = bytes, .alignment = RS_BLOCK_ALIGNMENT};

    return rs_pool_create(&rs_mr_descriptor_arena, environment, &pool, upstream, out);
}

static bool arena_validate(const void *config, const struct rs_environment *environment,
                           const struct rs_source *source, struct rs_diagnostics *diagnostics)
{
    const struct arena_config *settings = config;
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];

    if (environment && environment->total_bytes &&
        settings->arena_size > environment->total_bytes) {
        rs_diagnose(diagnostics, source, NULL,
                    "the arena's size %s is larger than the device's memory of %s",
                    rs_size_format(settings->arena_size, first),
                    rs_size_format_short(environment->total_bytes, second));
        return false;
    }
    return true;
}

static const struct rs_option arena_options[] = {
    RS_OPTION_SIZE_ROW(struct arena_config, arena_size, "50%free",
                       "initial and maximum size: taken at the first allocation, and the arena "
                       "never holds more",
                       .minimum = ARENA_LEAST_BYTES, .maximum = RS_SIZE_ADDRESSABLE,
                       .beyond_whole = true),
    RS_OPTION_BOOLEAN_ROW(struct arena_config, dump_log_on_failure, "0",
                          "accepted as RMM's default; RMM_ON_OOM reports a request that finds no "
                          "room",
                          .only_no = "an arena writes no dump; RMM_ON_OOM=text:PATH reports a "
                                     "request that finds no room"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_arena = {
    .name = "arena",
    .summary = "a pool whose initial and maximum size are arena_size",
    .upstream_count = 1,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct arena_config),
    .options = arena_options,
    .validate = arena_validate,
    .create = arena_create,
};
