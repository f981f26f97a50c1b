/* SPDX-License-Identifier: Apache-2.0 */
/* The environment: what each variable builds, per device, and every kind of bad setting. */
#include "unit.h"

#include "lines.h"

#include "base/check.h"
#include "config/config.h"

#include <stdio.h>
#include <string.h>

enum { SETTINGS_MAX = 6 };

static unsigned parse(const char *const *settings, struct lines *lines, struct rs_config *config)
{
    return rs_config_parse((char *const *)(uintptr_t)settings, lines_begin(lines), config);
}

/* As the tool does: what is doubtful is an error. */
static unsigned parse_strictly(const char *const *settings, struct lines *lines,
                               struct rs_config *config)
{
    lines_begin(lines)->doubts_are_errors = true;
    return rs_config_parse((char *const *)(uintptr_t)settings, &lines->diagnostics, config);
}

static const char *stack_text(const struct rs_config *config, int device,
                              char text[RS_EXPRESSION_TEXT_BYTES])
{
    const struct rs_expression *stack = rs_config_stack(config, RS_KIND_DEVICE, device);

    return stack ? rs_expression_format(stack, NULL, text) : "none";
}

TEST(variables_build_the_stack)
{
    static const struct {
        const char *settings[SETTINGS_MAX];
        const char *stack;
    } cases[] = {
        {{"PATH=/bin"}, "none"},
        {{"RMM_POOL_SIZE="}, "none"},
        {{"RMM_VERBOSE=1"}, "none"},
        {{"RMM_FREE=immediate"}, "none"},
        {{"RMM_PHASES=nvtx"}, "cuda"},
        {{"RMM_POOL_SIZE=4GiB"}, "reuse(pool(cuda, initial_size=4GiB))"},
        {{"RMM_POOL_SIZE=0"}, "reuse(pool(cuda, initial_size=0B))"},
        {{"RMM_POOL_MAX_SIZE=80%"}, "reuse(pool(cuda, maximum_size=80%))"},
        {{"RMM_POOL_SIZE=1G", "RMM_POOL_MAX_SIZE=2G"},
         "reuse(pool(cuda, initial_size=1GiB, maximum_size=2GiB))"},
        {{"RMM_ARENA_SIZE=4GiB"}, "reuse(arena(cuda, arena_size=4GiB))"},
        {{"RMM_ARENA_SIZE=50%free", "RMM_MANAGED=1"}, "reuse(arena(managed, arena_size=50%free))"},
        {{"RMM_ARENA_SIZE=1GiB", "RMM_BINNING=256KiB-4MiB"},
         "reuse(binning(arena(cuda, arena_size=1GiB), minimum_size=256KiB, maximum_size=4MiB))"},
        {{"RMM_ARENA_SIZE=1GiB", "RMM_FALLBACK=pinned"},
         "reuse(fallback(arena(cuda, arena_size=1GiB), pool(pinned)))"},
        {{"RMM_MANAGED=1"}, "managed"},
        {{"RMM_MANAGED=0"}, "cuda"},
        {{"RMM_MANAGED=yes", "RMM_POOL_SIZE=1GiB"}, "reuse(pool(managed, initial_size=1GiB))"},
        {{"RMM_POOL_SIZE=1GiB", "RMM_BINNING=256KiB-4MiB"},
         "reuse(binning(pool(cuda, initial_size=1GiB), minimum_size=256KiB, maximum_size=4MiB))"},
        {{"RMM_FALLBACK=managed"}, "fallback(cuda, managed(charged=0))"},
        {{"RMM_FALLBACK=pinned"}, "fallback(cuda, pinned)"},
        {{"RMM_FALLBACK=managed", "RMM_POOL_SIZE=1GiB"},
         "reuse(fallback(pool(cuda, initial_size=1GiB), pool(managed(charged=0))))"},
        {{"RMM_FALLBACK=pinned", "RMM_POOL_MAX_SIZE=1GiB", "RMM_STATISTICS=1"},
         "statistics(reuse(fallback(pool(cuda, maximum_size=1GiB), pool(pinned))))"},
        {{"RMM_FALLBACK=pinned", "RMM_BINNING=256KiB-4MiB"},
         "reuse(fallback(binning(cuda, minimum_size=256KiB, maximum_size=4MiB), pool(pinned)))"},
        {{"RMM_MANAGED=1", "RMM_PREFETCH=1"}, "prefetch(managed)"},
        {{"RMM_MANAGED=1", "RMM_PREFETCH=0"}, "managed"},
        {{"RMM_MANAGED=1", "RMM_PREFETCH=1", "RMM_POOL_SIZE=1GiB"},
         "prefetch(reuse(pool(managed, initial_size=1GiB)))"},
        {{"RMM_FALLBACK=managed", "RMM_PREFETCH=1"},
         "prefetch(fallback(cuda, managed(charged=0)))"},
        {{"RMM_RESOURCE=fallback(pool(cuda), fallback(pinned, managed))"},
         "reuse(fallback(pool(cuda), fallback(pinned, managed)))"},
        {{"RMM_RESOURCE=sam_headroom(managed, headroom=1GiB)"}, "headroom(managed, headroom=1GiB)"},
        {{"RMM_ASYNC=1"}, "reuse(async)"},
        {{"RMM_ASYNC=0"}, "cuda"},
        {{"RMM_ASYNC=0", "RMM_MANAGED=1"}, "managed"},
        {{"RMM_ASYNC=1", "RMM_MANAGED=1"}, "reuse(async_managed)"},
        {{"RMM_ASYNC=1", "RMM_MANAGED=0", "RMM_POOL_SIZE=1GiB"},
         "reuse(pool(async, initial_size=1GiB))"},
        {{"RMM_RESOURCE=cuda_async(initial_pool_size=1GiB, release_threshold=2GiB)"},
         "reuse(async(initial_size=1GiB, release_threshold=2GiB))"},
        {{"RMM_RESOURCE=cuda_async_managed"}, "reuse(async_managed)"},
        {{"RMM_RESOURCE=statistics(system)"}, "statistics(reuse(system))"},
        {{"RMM_ASYNC=1", "RMM_FREE=immediate"}, "async"},
        {{"RMM_ASYNC=1", "RMM_FALLBACK=managed"}, "reuse(fallback(async, managed(charged=0)))"},
        {{"RMM_ASYNC=1", "RMM_FALLBACK=pinned", "RMM_FREE=immediate"}, "fallback(async, pinned)"},
        {{"RMM_ASYNC=1", "RMM_MANAGED=1", "RMM_PREFETCH=1"}, "prefetch(reuse(async_managed))"},
        {{"RMM_RESOURCE=fallback(cuda, system)"}, "reuse(fallback(cuda, system))"},
        {{"RMM_RESOURCE=statistics(binning(pool(cuda), bin(managed, size=1MiB), bin(cuda, "
          "size=4MiB)))"},
         "statistics(reuse(binning(pool(cuda), bin(managed, size=1MiB), bin(cuda, size=4MiB))))"},
        {{"RMM_RESOURCE=binning(pool(cuda), bin(managed, size=1MiB))", "RMM_IPC=dedicated"},
         "cuda"},
        {{"RMM_RESOURCE=binning(cuda, bin(managed, size=1MiB))", "RMM_STATISTICS=1"},
         "statistics(reuse(binning(cuda, bin(managed, size=1MiB))))"},
        {{"RMM_ASYNC=1", "RMM_FREE=wait"}, "reuse(async, free=wait)"},
        {{"RMM_ASYNC=1", "RMM_POOL_SIZE=1GiB", "RMM_FREE=immediate"},
         "pool(async, initial_size=1GiB)"},
        {{"RMM_POOL_SIZE=1GiB", "RMM_FREE=immediate"}, "pool(cuda, initial_size=1GiB)"},
        {{"RMM_POOL_SIZE=1GiB", "RMM_FREE=wait"},
         "reuse(pool(cuda, initial_size=1GiB), free=wait)"},
        {{"RMM_RESOURCE=pool(cuda, alignment=1MiB)"}, "reuse(pool(cuda, alignment=1MiB))"},
        {{"RMM_POOL_SIZE=1GiB", "RMM_FREE=deferred"}, "reuse(pool(cuda, initial_size=1GiB))"},
        {{"RMM_STATISTICS=1"}, "statistics(cuda)"},
        {{"RMM_STATISTICS=0"}, "none"},
        {{"RMM_STATISTICS=json:/tmp/x"}, "statistics(cuda)"},
        {{"RMM_TRACKING=1"}, "tracking(cuda, stacks=1)"},
        {{"RMM_TRACKING=off"}, "none"},
        {{"RMM_TRACKING=json:/tmp/x", "RMM_POOL_SIZE=1GiB", "RMM_STATISTICS=1", "RMM_LOG=x"},
         "logging(statistics(tracking(reuse(pool(cuda, initial_size=1GiB)), stacks=1)), path=x)"},
        {{"RMM_TRACKING=1", "RMM_RESOURCE=statistics(tracking(pool(cuda)))"},
         "statistics(tracking(reuse(pool(cuda)), stacks=1))"},
        {{"RMM_TRACKING=1", "RMM_RESOURCE=tracking(cuda, capture_stacks=0)"},
         "tracking(cuda, stacks=0)"},
        {{"RMM_RESOURCE=poison(cuda)"}, "reuse(poison(cuda))"},
        {{"RMM_RESOURCE=tracking(poison(pool(cuda), guard=512), stacks=1)"},
         "tracking(reuse(poison(pool(cuda), guard=512B)), stacks=1)"},
        {{"RMM_LOG=/tmp/x.csv"}, "logging(cuda, path=/tmp/x.csv)"},
        {{"RMM_LOG=/tmp/%p.csv", "RMM_STATISTICS=prom:/tmp/%e", "RMM_POOL_SIZE=1GiB"},
         "logging(statistics(reuse(pool(cuda, initial_size=1GiB))), path=/tmp/%p.csv)"},
        {{"RMM_RESOURCE=pool(cuda)"}, "reuse(pool(cuda))"},
        {{"RMM_RESOURCE=rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), "
          "initial_pool_size=2**30)"},
         "reuse(pool(cuda, initial_size=1GiB))"},
        {{"RMM_POOL_SIZE=2**30", "RMM_BINNING=2**18-2**22"},
         "reuse(binning(pool(cuda, initial_size=1GiB), minimum_size=256KiB, maximum_size=4MiB))"},
        {{"RMM_RESOURCE=statistics(pool(cuda))", "RMM_STATISTICS=1"},
         "statistics(reuse(pool(cuda)))"},
        {{"RMM_RESOURCE=pool(cuda)", "RMM_STATISTICS=1", "RMM_LOG=x"},
         "logging(statistics(reuse(pool(cuda))), path=x)"},
        {{"RMM_IPC=dedicated"}, "none"},
        {{"RMM_IPC=shared", "RMM_POOL_SIZE=1GiB"}, "reuse(pool(cuda, initial_size=1GiB))"},
        {{"RMM_IPC=dedicated", "RMM_POOL_SIZE=1GiB", "RMM_BINNING=256KiB-4MiB", "RMM_STATISTICS=1"},
         "statistics(cuda)"},
        {{"RMM_IPC=dedicated", "RMM_ARENA_SIZE=1GiB", "RMM_FALLBACK=pinned"},
         "fallback(cuda, pinned)"},
        {{"RMM_IPC=dedicated",
          "RMM_RESOURCE=statistics(reuse(limiting(fixed_size(pool(cuda)), limit=1GiB)))"},
         "statistics(limiting(cuda, limit=1GiB))"},
        {{"RMM_IPC=dedicated", "RMM_RESOURCE=poison(pool(cuda))"}, "reuse(poison(cuda))"},
        {{"RMM_LIMIT=1GiB"}, "cuda"},
        {{"RMM_LIMIT=8B"}, "cuda"}, /* who writes the unit means it */
        {{"RMM_LIMIT=1048576"}, "cuda"},
        {{"RMM_LIMIT=128TiB"}, "cuda"},
        {{"RMM_POOL_SIZE=512B"}, "reuse(pool(cuda, initial_size=512B))"},
        {{"RMM_POOL_SIZE=4Gi", "RMM_LIMIT=512Gi"}, "reuse(pool(cuda, initial_size=4GiB))"},
        {{"RMM_POOL_SIZE=1000000001"}, "reuse(pool(cuda, initial_size=1000000000B))"},
        {{"RMM_POOL_SIZE=0.1GiB", "RMM_POOL_MAX_SIZE=0.3GB"},
         "reuse(pool(cuda, initial_size=107374080B, maximum_size=300000000B))"},
        {{"RMM_RESOURCE=virtual(initial_size=1.1MiB)"}, "reuse(virtual(initial_size=1153280B))"},
        {{"RMM_BINNING=512-4096"},
         "reuse(binning(cuda, minimum_size=512B, maximum_size=4KiB))"}, /* blocks, which are small
                                                                         */
        {{"RMM_RESOURCE=limiting(cuda, limit=512)"}, "limiting(cuda, limit=512B)"}, /* RMM's words,
                                                                                       in bytes */
        {{"RMM_LIMIT=1GiB", "RMM_POOL_SIZE=1GiB"}, "reuse(pool(cuda, initial_size=1GiB))"},
        {{"RMM_LIMIT=50%", "RMM_POOL_SIZE=60%"}, "reuse(pool(cuda, initial_size=60%))"},
        {{"RMM_LIMIT=150%"}, "cuda"}, /* managed memory counts, the program's own too */
        {{"RMM_LIMIT=1GiB",
          "RMM_RESOURCE=fallback(pool(cuda), pool(pinned, initial_size=2GiB))"}, /* not counted */
         "reuse(fallback(pool(cuda), pool(pinned, initial_size=2GiB)))"},
        {{"RMM_POOL_SIZE=150%", "RMM_POOL_MAX_SIZE=200%", "RMM_MANAGED=1"},
         "reuse(pool(managed, initial_size=150%, maximum_size=200%))"},
        {{"RMM_ARENA_SIZE=150%free", "RMM_MANAGED=1"},
         "reuse(arena(managed, arena_size=150%free))"},
        {{"RMM_RESOURCE=pool(fallback(cuda, managed), initial_size=150%)"},
         "reuse(pool(fallback(cuda, managed), initial_size=150%))"},
        {{"RMM_LOG_FILE=x", "RMM_DEBUG_LOG_FILE=y", "RMM_TAG=z", "RMM_ROOT=/rmm"}, "none"},
        {{"RMM_INIT=1", "RMM_LOGIN=x", "RMM_EMIT=x", "RMM_TAG=1"}, "none"},
        {{"RMM_LOGGING_LEVEL=x", "RMM_LOGGING_=y", "rmm_limits=z", "rmm_pool=z",
          "Rmm_Limit_GPU0=z"},
         "none"},
        /* what Kubernetes sets for services called rmm, rmm-pool, rmm-limit, rmm-log and so on */
        {{"RMM_PORT=tcp://10.0.0.1:80", "RMM_SERVICE_HOST=10.0.0.1",
          "RMM_POOL_PORT=tcp://10.0.0.1:80", "RMM_POOL_SERVICE_HOST=10.0.0.1",
          "RMM_POOL_SERVICE_PORT_HTTP=80"},
         "none"},
        {{"RMM_LIMIT_PORT=tcp://10.0.0.1:80", "RMM_LIMIT_PORT_80_TCP_ADDR=10.0.0.1",
          "RMM_LOG_SERVICE_PORT=80", "RMM_LIMIT_SERVICE_PORT_0=80", "RMM_LOG_PORT_80_TCP=x"},
         "none"},
        {{"RMM_DEVICES_SERVICE_HOST=10.0.0.1", "RMM_DEVICES_PORT=tcp://10.0.0.1:80",
          "RMM_LOGGING_0=x", "rmm_devices=0", "rmm_logging=1"},
         "none"},
        {{"RMM_Limit=", "RMM_LIMIT_GPU0=", "RMM_POOL="}, "none"}, /* not set */
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char text[RS_EXPRESSION_TEXT_BYTES];
        struct rs_config config;
        struct lines lines;

        if (parse(cases[i].settings, &lines, &config) != 0)
            fail_msg("case %zu: %s", i, lines.text[0]);
        assert_string_equal(stack_text(&config, 0, text), cases[i].stack);
        assert_int_equal(config.anything_set, strcmp(cases[i].stack, "none") != 0);
        rs_config_free(&config);
    }
}

TEST(pinned_memory_has_stacks_of_its_own)
{
    static const struct {
        const char *settings[SETTINGS_MAX];
        const char *device, *pinned;
    } cases[] = {
        {{"RMM_PINNED_POOL_SIZE=1GiB"}, "none", "reuse(pool(pinned, initial_size=1GiB))"},
        {{"RMM_PINNED_POOL_SIZE=1GiB", "RMM_FREE=immediate"},
         "none",
         "reuse(pool(pinned, initial_size=1GiB))"}, /* the host follows no stream */
        {{"RMM_PINNED_RESOURCE=pool(pinned_host)", "RMM_POOL_SIZE=4GiB"},
         "reuse(pool(cuda, initial_size=4GiB))",
         "reuse(pool(pinned))"},
        {{"RMM_PINNED_POOL_SIZE=1GiB", "RMM_STATISTICS=1", "RMM_FREE=wait"},
         "statistics(cuda)",
         "statistics(reuse(pool(pinned, initial_size=1GiB), free=wait))"},
        {{"RMM_POOL_SIZE=1GiB"}, "reuse(pool(cuda, initial_size=1GiB))", "none"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char text[RS_EXPRESSION_TEXT_BYTES];
        const struct rs_expression *pinned;
        struct rs_config config;
        struct lines lines;

        if (parse(cases[i].settings, &lines, &config) != 0)
            fail_msg("case %zu: %s", i, lines.text[0]);
        assert_string_equal(stack_text(&config, 0, text), cases[i].device);
        pinned = rs_config_stack(&config, RS_KIND_PINNED, 0);
        assert_string_equal(pinned ? rs_expression_format(pinned, NULL, text) : "none",
                            cases[i].pinned);
        rs_config_free(&config);
    }
}

TEST(managed_memory_has_a_stack_of_its_own)
{
    static const struct {
        const char *settings[SETTINGS_MAX];
        const char *device, *managed;
    } cases[] = {
        {{"RMM_MANAGED_POOL_SIZE=1GiB"},
         "none",
         "reuse(pool(managed, initial_size=1GiB, alignment=64KiB))"},
        {{"RMM_MANAGED_POOL_SIZE=0", "RMM_POOL_SIZE=4GiB", "RMM_FREE=immediate"},
         "pool(cuda, initial_size=4GiB)",
         "reuse(pool(managed, initial_size=0B, alignment=64KiB))"},
        {{"RMM_MANAGED_RESOURCE=managed", "RMM_MANAGED=1"}, "managed", "managed"},
        {{"RMM_MANAGED_RESOURCE=pool(managed, alignment=2MiB)", "RMM_FREE=wait", "RMM_STATISTICS=1",
          "RMM_LOG=x"},
         "logging(statistics(cuda), path=x)",
         "logging(statistics(reuse(pool(managed, alignment=2MiB), free=wait)), path=x)"},
        {{"RMM_MANAGED_RESOURCE=binning(pool(managed), bins=64KiB+192KiB)"},
         "none",
         "reuse(binning(pool(managed, alignment=64KiB), bins=64KiB+192KiB))"},
        {{"RMM_MANAGED_RESOURCE=binning(pool(managed), minimum_size=64KiB, maximum_size=1MiB)"},
         "none",
         "reuse(binning(pool(managed, alignment=64KiB), minimum_size=64KiB, maximum_size=1MiB))"},
        {{"RMM_MANAGED_RESOURCE=fixed_size(managed)"}, "none", "reuse(fixed_size(managed))"},
        {{"RMM_MANAGED_RESOURCE=poison(pool(managed))"},
         "none",
         "reuse(poison(pool(managed, alignment=64KiB)))"},
        {{"RMM_MANAGED=1"}, "managed", "none"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char text[RS_EXPRESSION_TEXT_BYTES];
        const struct rs_expression *managed;
        struct rs_config config;
        struct lines lines;

        if (parse(cases[i].settings, &lines, &config) != 0)
            fail_msg("case %zu: %s", i, lines.text[0]);
        assert_string_equal(stack_text(&config, 0, text), cases[i].device);
        managed = rs_config_stack(&config, RS_KIND_MANAGED, 0);
        assert_string_equal(managed ? rs_expression_format(managed, NULL, text) : "none",
                            cases[i].managed);
        assert_null(rs_config_stack(&config, RS_KIND_PINNED, 0));
        rs_config_free(&config);
    }
}

TEST(a_numbered_variable_is_for_that_device)
{
    static const struct {
        const char *settings[SETTINGS_MAX];
        const char *device_0, *device_1;
    } cases[] = {
        {{"RMM_POOL_SIZE_1=1GiB"}, "none", "reuse(pool(cuda, initial_size=1GiB))"},
        {{"RMM_POOL_SIZE=4GiB", "RMM_POOL_SIZE_1=1GiB"},
         "reuse(pool(cuda, initial_size=4GiB))",
         "reuse(pool(cuda, initial_size=1GiB))"},
        {{"RMM_POOL_SIZE=4GiB", "RMM_MANAGED_1=1"},
         "reuse(pool(cuda, initial_size=4GiB))",
         "reuse(pool(managed, initial_size=4GiB))"},
        {{"RMM_POOL_SIZE=4GiB", "RMM_RESOURCE_1=managed"},
         "reuse(pool(cuda, initial_size=4GiB))",
         "managed"},
        {{"RMM_RESOURCE=managed", "RMM_POOL_SIZE_1=1GiB"},
         "managed",
         "reuse(pool(cuda, initial_size=1GiB))"},
        {{"RMM_POOL_SIZE=1GiB", "RMM_POOL_MAX_SIZE=2GiB", "RMM_ARENA_SIZE_1=2GiB"},
         "reuse(pool(cuda, initial_size=1GiB, maximum_size=2GiB))",
         "reuse(arena(cuda, arena_size=2GiB))"},
        {{"RMM_ARENA_SIZE=1GiB", "RMM_POOL_SIZE_1=2GiB"},
         "reuse(arena(cuda, arena_size=1GiB))",
         "reuse(pool(cuda, initial_size=2GiB))"},
        {{"RMM_POOL_SIZE=1GiB", "RMM_IPC_1=dedicated"},
         "reuse(pool(cuda, initial_size=1GiB))",
         "cuda"},
        {{"RMM_RESOURCE=pool(cuda)", "RMM_FREE_1=immediate", "RMM_LOG_1=x"},
         "reuse(pool(cuda))",
         "logging(pool(cuda), path=x)"},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        char text[RS_EXPRESSION_TEXT_BYTES];
        struct rs_config config;
        struct lines lines;

        if (parse(cases[i].settings, &lines, &config) != 0)
            fail_msg("case %zu: %s", i, lines.text[0]);
        assert_string_equal(stack_text(&config, 0, text), cases[i].device_0);
        assert_string_equal(stack_text(&config, 1, text), cases[i].device_1);
        assert_string_equal(stack_text(&config, 2, text), cases[i].device_0);
        rs_config_free(&config);
    }
}

TEST(bad_settings_are_one_line_each)
{
    static const struct {
        const char *settings[SETTINGS_MAX];
        const char *line; /* its beginning */
    } cases[] = {
        {{"RMM_POOL_SIZE=10Q"}, "RMM_POOL_SIZE=10^Q: unknown unit"},
        {{"RMM_POOL_SIZE=-1"}, "RMM_POOL_SIZE=^-1: a size cannot be negative"},
        {{"RMM_POOL_SIZE=200%"}, "RMM_POOL_SIZE=^200%: more than 100%"},
        {{"RMM_POOL_SIZE=200%", "RMM_POOL_MAX_SIZE=300%"}, "RMM_POOL_SIZE=^200%: more than 100%"},
        {{"RMM_POOL_SIZE=20%", "RMM_POOL_MAX_SIZE=300%"}, "RMM_POOL_MAX_SIZE=^300%: more than"},
        {{"RMM_POOL_SIZE=200%", "RMM_FALLBACK=managed"}, "RMM_POOL_SIZE=^200%: more than 100%"},
        {{"RMM_ARENA_SIZE=101%"}, "RMM_ARENA_SIZE=^101%: more than 100%"},
        {{"RMM_PINNED_POOL_SIZE=101%"}, "RMM_PINNED_POOL_SIZE=^101%: more than 100%"},
        {{"RMM_LIMIT=10001%"}, "RMM_LIMIT=^10001%: more than 10000%"},
        {{"RMM_LIMIT_JOB=80%free"}, "RMM_LIMIT_JOB=80%^free: "},
        {{"RMM_RESOURCE=statistics(pool(cuda, initial_size=101%))"},
         "RMM_RESOURCE=statistics(^pool(cuda, initial_size=101%)): initial_size of 'pool' is more "
         "than"},
        {{"RMM_RESOURCE=virtual(initial_size=101%)"},
         "RMM_RESOURCE=virtual(initial_size=^101%): more than 100%"},
        {{"RMM_RESOURCE=recording(cuda)"},
         "RMM_RESOURCE=recording(cuda): 'recording' needs a path"},
        {{"RMM_LIMIT=1GiB", "RMM_MANAGED_POOL_SIZE=2GiB"},
         "RMM_MANAGED_POOL_SIZE=2GiB: 'pool' has an initial size of 2GiB, which is above the limit "
         "of 1GiB (RMM_LIMIT)"},
        {{"RMM_POOL_SIZE=2GiB", "RMM_POOL_MAX_SIZE=1GiB"}, "RMM_POOL_MAX_SIZE=1GiB: "},
        {{"RMM_RESOURCE=pol(cuda)"},
         "RMM_RESOURCE=^pol(cuda): there is no memory resource of this name"},
        {{"RMM_POOLSIZE=1GiB"}, "RMM_POOLSIZE=1GiB: unknown variable; did you mean RMM_POOL_SIZE?"},
        {{"RMM_POOL_SZIE_1=1GiB"},
         "RMM_POOL_SZIE_1=1GiB: unknown variable; did you mean RMM_POOL_SIZE_1?"},
        {{"RMM_MANAGE=1"}, "RMM_MANAGE=1: unknown variable; did you mean RMM_MANAGED?"},
        {{"RMM_LOGS=1"}, "RMM_LOGS=1: unknown variable; did you mean RMM_LOG?"},
        {{"RMM_LIMITS_2=1GiB"}, "RMM_LIMITS_2=1GiB: unknown variable; did you mean RMM_LIMIT_2?"},
        {{"RMM_VERBOS_2=1"}, "RMM_VERBOS_2=1: unknown variable; did you mean RMM_VERBOSE?"},
        {{"RMM_MANAGED_POOL_SZIE=1GiB"},
         "RMM_MANAGED_POOL_SZIE=1GiB: unknown variable; did you mean RMM_MANAGED_POOL_SIZE?"},
        {{"RMM_LMTI=1GiB"}, "RMM_LMTI=1GiB: unknown variable; did you mean RMM_LIMIT?"},
        {{"RMM_LIMTS_0=1GiB"}, "RMM_LIMTS_0=1GiB: unknown variable; did you mean RMM_LIMIT_0?"},
        /* in another case */
        {{"RMM_Limit=1GiB"}, "RMM_Limit=1GiB: unknown variable; did you mean RMM_LIMIT?"},
        {{"rmm_limit=1GiB"}, "rmm_limit=1GiB: unknown variable; did you mean RMM_LIMIT?"},
        {{"Rmm_Pool_Size_1=1GiB"},
         "Rmm_Pool_Size_1=1GiB: unknown variable; did you mean RMM_POOL_SIZE_1?"},
        {{"RMM_Pool=1GiB"},
         "RMM_Pool=1GiB: unknown variable; did you mean RMM_POOL_SIZE or RMM_POOL_MAX_SIZE?"},
        {{"RMM_Lmiit=1GiB"}, "RMM_Lmiit=1GiB: unknown variable; did you mean RMM_LIMIT?"},
        /* not a device */
        {{"RMM_LIMIT_100=1GiB"},
         "RMM_LIMIT_100=1GiB: the number of a device must be below 64: correct it, or set "
         "RMM_LIMIT for all devices"},
        {{"RMM_LIMIT_99999999999=1GiB"},
         "RMM_LIMIT_99999999999=1GiB: the number of a device must be below"},
        {{"RMM_LIMIT_007=1GiB"},
         "RMM_LIMIT_007=1GiB: '007' is not the number of a device; did you mean RMM_LIMIT_7?"},
        {{"RMM_LIMIT_GPU0=1GiB"},
         "RMM_LIMIT_GPU0=1GiB: 'GPU0' is not the number of a device; did you mean RMM_LIMIT_0?"},
        {{"RMM_LIMIT_GPU_12=1GiB"},
         "RMM_LIMIT_GPU_12=1GiB: 'GPU_12' is not the number of a device; did you mean "
         "RMM_LIMIT_12?"},
        {{"RMM_LIMIT_gpu0=1GiB"},
         "RMM_LIMIT_gpu0=1GiB: 'gpu0' is not the number of a device; did you mean RMM_LIMIT_0?"},
        {{"RMM_LIMIT_ALL=1GiB"},
         "RMM_LIMIT_ALL=1GiB: 'ALL' is not the number of a device; did you mean RMM_LIMIT?"},
        {{"RMM_LIMIT_=1GiB"},
         "RMM_LIMIT_=1GiB: '' is not the number of a device; did you mean RMM_LIMIT?"},
        {{"RMM_POOL_SIZE_A=1GiB"},
         "RMM_POOL_SIZE_A=1GiB: 'A' is not the number of a device; did you mean RMM_POOL_SIZE?"},
        {{"RMM_MANAGED_POOL_SIZE_X=1GiB"},
         "RMM_MANAGED_POOL_SIZE_X=1GiB: 'X' is not the number of a device; did you mean "
         "RMM_MANAGED_POOL_SIZE?"},
        {{"RMM_VERBOSE_GPU1=1"}, "RMM_VERBOSE_GPU1=1: RMM_VERBOSE is for the whole process"},
        /* the beginning of some */
        {{"RMM_POOL=1GiB"},
         "RMM_POOL=1GiB: unknown variable; did you mean RMM_POOL_SIZE or RMM_POOL_MAX_SIZE?"},
        {{"RMM_POOL_3=1GiB"},
         "RMM_POOL_3=1GiB: unknown variable; did you mean RMM_POOL_SIZE_3 or RMM_POOL_MAX_SIZE_3?"},
        {{"RMM_PINNED=1GiB"},
         "RMM_PINNED=1GiB: unknown variable; did you mean RMM_PINNED_RESOURCE or "
         "RMM_PINNED_POOL_SIZE?"},
        {{"RMM_MANAGED_POOL=1GiB"},
         "RMM_MANAGED_POOL=1GiB: unknown variable; did you mean RMM_MANAGED_POOL_SIZE?"},
        {{"RMM_ON=deny"},
         "RMM_ON=deny: unknown variable; did you mean RMM_ON_OOM or RMM_ON_ERROR?"},
        /* parameters of RMM's own functions */
        {{"RMM_INITIAL_POOL_SIZE=1GiB"},
         "RMM_INITIAL_POOL_SIZE=1GiB: unknown variable; did you mean RMM_POOL_SIZE?"},
        {{"RMM_INITIAL_POOL_SIZE_3=1GiB"},
         "RMM_INITIAL_POOL_SIZE_3=1GiB: unknown variable; did you mean RMM_POOL_SIZE_3?"},
        {{"RMM_MAXIMUM_POOL_SIZE=1GiB"},
         "RMM_MAXIMUM_POOL_SIZE=1GiB: unknown variable; did you mean RMM_POOL_MAX_SIZE?"},
        {{"RMM_POOL_ALLOCATOR=True"},
         "RMM_POOL_ALLOCATOR=True: unknown variable; did you mean RMM_POOL_SIZE?"},
        {{"RMM_DEVICES_1=1"},
         "RMM_DEVICES_1=1: unknown variable; a setting for one device ends with the "
         "device's number, as in RMM_POOL_SIZE_0"},
        {{"RMM_LOG_FILE_NAME=x"}, "RMM_LOG_FILE_NAME=x: unknown variable; did you mean RMM_LOG?"},
        {{"RMM_LOG_DIRECTORY=x"}, "RMM_LOG_DIRECTORY=x: unknown variable; did you mean RMM_LOG?"},
        {{"RMM_TRACK_ALLOCATIONS=1"},
         "RMM_TRACK_ALLOCATIONS=1: unknown variable; did you mean RMM_TRACKING?"},
        {{"RMM_ALLOCATION_LIMIT_1=1GiB"},
         "RMM_ALLOCATION_LIMIT_1=1GiB: unknown variable; did you mean RMM_LIMIT_1?"},
        {{"RMM_Managed_Memory=1"},
         "RMM_Managed_Memory=1: unknown variable; did you mean RMM_MANAGED?"},
        {{"RMM_MANAGED_MEMORY_64=1"},
         "RMM_MANAGED_MEMORY_64=1: unknown variable; did you mean RMM_MANAGED?"},
        {{"RMM_RESOURCE=pool(cuda)", "RMM_POOL_SIZE=1GiB"},
         "RMM_POOL_SIZE=1GiB: RMM_RESOURCE already says which memory resources"},
        {{"RMM_RESOURCE_1=pool(cuda)", "RMM_MANAGED_1=1"},
         "RMM_MANAGED_1=1: RMM_RESOURCE_1 already says which memory resources"},
        {{"RMM_RESOURCE=logging(cuda, path=x)", "RMM_LOG=y"},
         "RMM_LOG=y: RMM_RESOURCE already writes a log: remove 'logging' from RMM_RESOURCE, or "
         "unset RMM_LOG"},
        {{"RMM_PINNED_RESOURCE=logging(pinned, path=x)", "RMM_LOG=y"},
         "RMM_LOG=y: RMM_PINNED_RESOURCE already writes a log: remove 'logging' from "
         "RMM_PINNED_RESOURCE, or unset RMM_LOG"},
        {{"RMM_RESOURCE_1=recording(cuda, path=x)", "RMM_RECORD=y"},
         "RMM_RECORD=y: RMM_RESOURCE_1 already writes a recording: remove 'recording' from "
         "RMM_RESOURCE_1, or unset RMM_RECORD"},
        {{"RMM_MANAGED=maybe"}, "RMM_MANAGED=^maybe: unknown value; the possible values are"},
        {{"RMM_FREE=imediate"}, "RMM_FREE=^imediate: unknown value; did you mean 'immediate'?"},
        {{"RMM_PHASES=nvxt"}, "RMM_PHASES=^nvxt: unknown value; did you mean 'nvtx'?"},
        {{"RMM_ON_ERROR=abrot"}, "RMM_ON_ERROR=^abrot: unknown value; did you mean 'abort'?"},
        {{"RMM_STATISTICS=jsno:x"}, "RMM_STATISTICS=^jsno:x: unknown value; did you mean 'json'?"},
        {{"RMM_TRACKING=prom:x"}, "RMM_TRACKING=^prom:x: expected 1, text, text:PATH or json:PATH"},
        {{"RMM_TRACKING=jsno"}, "RMM_TRACKING=^jsno: unknown value; did you mean 'json'?"},
        {{"RMM_TRACKING=text:"}, "RMM_TRACKING=text:^: a path is missing"},
        {{"RMM_TRACKING_1=1"},
         "RMM_TRACKING_1=1: RMM_TRACKING is for the whole process, not for one device"},
        {{"RMM_STATISTICS=json:"}, "RMM_STATISTICS=json:^: a path is missing"},
        {{"RMM_STATISTICS=json:%z"}, "RMM_STATISTICS=json:^%z: "},
        {{"RMM_LOG=%q{NO_SUCH_VARIABLE_HERE}"}, "RMM_LOG=%q{NO_SUCH_VARIABLE_HERE}: "},
        {{"RMM_HOOKS=device,runtme"},
         "RMM_HOOKS=device,^runtme: unknown group of functions; did you mean"},
        {{"RMM_BINNING=4MiB-256KiB"},
         "RMM_BINNING=^4MiB-256KiB: the first size of a range must not be larger than the second"},
        {{"RMM_BINNING=4MiB"}, "RMM_BINNING=^4MiB: expected two sizes"},
        {{"RMM_IPC=dedicate"}, "RMM_IPC=^dedicate: unknown value; did you mean 'dedicated'?"},
        {{"RMM_IPC=dedicated", "RMM_MANAGED=1", "RMM_POOL_SIZE=1GiB"},
         "RMM_IPC=dedicated: other processes cannot open memory of the resource 'managed'"},
        {{"RMM_IPC=dedicated", "RMM_RESOURCE=fallback(virtual, cuda)"},
         "RMM_IPC=dedicated: other processes cannot open memory of the resource 'virtual'"},
        {{"RMM_VERBOSE_1=1"}, "RMM_VERBOSE_1=1: RMM_VERBOSE is for the whole process"},
        {{"RMM_POOL_SIZE_64=1GiB"},
         "RMM_POOL_SIZE_64=1GiB: the number of a device must be below 64: correct it, or set "
         "RMM_POOL_SIZE for all devices"},
        {{"RMM_LIMIT=0"}, "RMM_LIMIT=^0: "},
        {{"RMM_LIMIT=0%"}, "RMM_LIMIT=^0%: the value must be more than 0"},
        {{"RMM_LIMIT=0.0%free"}, "RMM_LIMIT=^0.0%free: the value must be more than 0"},
        {{"RMM_ARENA_SIZE=0%"}, "RMM_ARENA_SIZE=^0%: the value must be more than 0"},
        {{"RMM_POOL_MAX_SIZE=0"}, "RMM_POOL_MAX_SIZE=^0: "},
        {{"RMM_POOL_SIZE=255B"}, "RMM_POOL_SIZE=^255B: less than 256B"},
        {{"RMM_POOL_SIZE=1B"}, "RMM_POOL_SIZE=^1B: less than 256B"},
        {{"RMM_PINNED_POOL_SIZE=255B"}, "RMM_PINNED_POOL_SIZE=^255B: less than 256B"},
        {{"RMM_POOL_SIZE=0.0000001GiB"}, "RMM_POOL_SIZE=^0.0000001GiB: less than 256B"},
        {{"RMM_POOL_MAX_SIZE=0%"}, "RMM_POOL_MAX_SIZE=^0%: the value must be more than 0"},
        {{"RMM_LIMIT=8"}, "RMM_LIMIT=^8: the unit is missing (8B is 8 bytes); did you mean 8GiB?"},
        {{"RMM_LIMIT_0=8192"},
         "RMM_LIMIT_0=^8192: the unit is missing (8192B is 8192 bytes); did you mean 8192MiB?"},
        {{"RMM_POOL_SIZE=4"}, "RMM_POOL_SIZE=^4: the unit is missing"},
        {{"RMM_POOL_MAX_SIZE=4"}, "RMM_POOL_MAX_SIZE=^4: the unit is missing"},
        {{"RMM_ARENA_SIZE=4"}, "RMM_ARENA_SIZE=^4: the unit is missing"},
        {{"RMM_PINNED_POOL_SIZE=4"}, "RMM_PINNED_POOL_SIZE=^4: the unit is missing"},
        {{"RMM_MANAGED_POOL_SIZE=4"}, "RMM_MANAGED_POOL_SIZE=^4: the unit is missing"},
        {{"RMM_LIMIT=0.5"},
         "RMM_LIMIT=^0.5: a number of bytes has no decimal point; did you mean 50%?"},
        {{"RMM_LIMIT=9999TiB"}, "RMM_LIMIT=^9999TiB: more than 128TiB"},
        {{"RMM_POOL_SIZE=9999TiB"}, "RMM_POOL_SIZE=^9999TiB: more than 128TiB"},
        {{"RMM_POOL_MAX_SIZE=129TiB"}, "RMM_POOL_MAX_SIZE=^129TiB: more than 128TiB"},
        {{"RMM_PINNED_POOL_SIZE=9999TiB"}, "RMM_PINNED_POOL_SIZE=^9999TiB: more than 128TiB"},
        {{"RMM_MANAGED_POOL_SIZE=9999TiB"}, "RMM_MANAGED_POOL_SIZE=^9999TiB: more than 128TiB"},
        {{"RMM_RESOURCE=pool(cuda, initial_size=9999TiB)"},
         "RMM_RESOURCE=pool(cuda, initial_size=^9999TiB): more than 128TiB"},
        {{"RMM_RESOURCE=pool(cuda, maximum_size=9999TiB)"},
         "RMM_RESOURCE=pool(cuda, maximum_size=^9999TiB): more than 128TiB"},
        {{"RMM_RESOURCE=virtual(initial_size=9999TiB)"},
         "RMM_RESOURCE=virtual(initial_size=^9999TiB): more than 128TiB"},
        {{"RMM_RESOURCE=virtual(maximum_size=9999TiB)"},
         "RMM_RESOURCE=virtual(maximum_size=^9999TiB): more than 128TiB"},
        {{"RMM_RESOURCE=async(initial_size=9999TiB)"},
         "RMM_RESOURCE=async(initial_size=^9999TiB): more than 128TiB"},
        {{"RMM_MANAGED=y"}, "RMM_MANAGED=^y: unknown value; did you mean 'yes'?"},
        {{"RMM_LIMIT=1GiB", "RMM_POOL_SIZE=2GiB"},
         "RMM_POOL_SIZE=2GiB: 'pool' has an initial size of 2GiB, which is above the limit of 1GiB "
         "(RMM_LIMIT)"},
        {{"RMM_LIMIT_1=1GiB", "RMM_RESOURCE=statistics(pool(cuda, initial_size=1025MiB))"},
         "RMM_RESOURCE=statistics(^pool(cuda, initial_size=1025MiB)): 'pool' has an initial size "
         "of 1025MiB"},
        {{"RMM_RESOURCE=pool(pinned)"},
         "RMM_RESOURCE=pool(^pinned): device memory cannot come from 'pinned'"},
        {{"RMM_RESOURCE=pool(simulated(size=1GiB))"},
         "RMM_RESOURCE=pool(^simulated(size=1GiB)): 'simulated' has addresses but no memory"},
        {{"RMM_RESOURCE=binning(cuda, bin(cuda, size=1KiB), bin(pool(pinned), size=1MiB))"},
         "RMM_RESOURCE=...ng(cuda, bin(cuda, size=1KiB), bin(pool(^pinned), size=1MiB)): device "
         "memory cannot come from 'pinned'"},
        {{"RMM_RESOURCE=binning(cuda, bin(pool(simulated), size=1MiB))"},
         "RMM_RESOURCE=binning(cuda, bin(pool(^simulated), size=1MiB)): 'simulated' has "
         "addresses but no memory"},
        {{"RMM_MANAGED_RESOURCE=binning(managed, bin(cuda, size=1MiB))"},
         "RMM_MANAGED_RESOURCE=binning(managed, bin(^cuda, size=1MiB)): managed memory must come "
         "from the memory resource 'managed', not from '"},
        {{"RMM_MANAGED_RESOURCE=binning(managed, bin(arena(managed), size=1MiB))"},
         "RMM_MANAGED_RESOURCE=binning(managed, bin(^arena(managed), size=1MiB)): 'arena' cannot"},
        {{"RMM_LIMIT=1GiB",
          "RMM_RESOURCE=binning(cuda, bin(pool(cuda, initial_size=2GiB), size=1MiB))"},
         "RMM_RESOURCE=binning(cuda, bin(^pool(cuda, initial_size=2GiB), size=1MiB...: 'pool' "
         "has an initial size"},
        {{"RMM_PINNED_RESOURCE=pool(system)"},
         "RMM_PINNED_RESOURCE=pool(^system): pinned memory must come from the memory resource "
         "'pinned', not from '"},
        {{"RMM_RESOURCE=pool(cuda)", "RMM_ASYNC=1"},
         "RMM_ASYNC=1: RMM_RESOURCE already says which memory resources"},
        {{"RMM_RESOURCE=async(initial_size=2GiB, release_threshold=1GiB)"},
         "RMM_RESOURCE=async(initial_size=2GiB, release_thresho...: the initial size 2GiB is "
         "above"},
        {{"RMM_PINNED_RESOURCE=pool(cuda)"},
         "RMM_PINNED_RESOURCE=pool(^cuda): pinned memory must come from the memory resource "
         "'pinned', not from '"},
        {{"RMM_RESOURCE=fallback(pinned, cuda)"},
         "RMM_RESOURCE=fallback(^pinned, cuda): device memory cannot come from"},
        {{"RMM_PINNED_RESOURCE=fallback(pinned, managed)"},
         "RMM_PINNED_RESOURCE=fallback(pinned, ^managed): pinned memory must come from the memory "
         "resource 'pinned', not from '"},
        {{"RMM_RESOURCE=fallback(cuda, pool(simulated))"},
         "RMM_RESOURCE=fallback(cuda, pool(^simulated)): 'simulated' has addresses but no memory"},
        {{"RMM_PREFETCH=1"}, "RMM_PREFETCH=1: only managed memory can be prefetched"},
        {{"RMM_PREFETCH=1", "RMM_FALLBACK=pinned"}, "RMM_PREFETCH=1: only managed memory can"},
        {{"RMM_FALLBACK=manged"}, "RMM_FALLBACK=^manged: unknown value; did you mean 'managed'?"},
        {{"RMM_FALLBACK=pinned", "RMM_RESOURCE=cuda"},
         "RMM_FALLBACK=pinned: RMM_RESOURCE already says"},
        {{"RMM_PINNED_RESOURCE=pool(pinned)", "RMM_PINNED_POOL_SIZE=1GiB"},
         "RMM_PINNED_POOL_SIZE=1GiB: RMM_PINNED_RESOURCE already says which memory resources"},
        {{"RMM_ARENA_SIZE=1GiB", "RMM_POOL_SIZE=1GiB"},
         "RMM_ARENA_SIZE=1GiB: an arena is a pool itself, so it cannot be used together with the "
         "pool of RMM_POOL_SIZE:"},
        {{"RMM_ARENA_SIZE_2=1GiB", "RMM_POOL_MAX_SIZE_2=1GiB", "RMM_POOL_SIZE=1GiB"},
         "RMM_ARENA_SIZE_2=1GiB: an arena is a pool itself, so it cannot be used together with the "
         "pool of RMM_POOL_MAX_SIZE_2"},
        {{"RMM_ARENA_SIZE_2=1GiB", "RMM_POOL_SIZE_2=1GiB", "RMM_POOL_MAX_SIZE=1GiB"},
         "RMM_ARENA_SIZE_2=1GiB: an arena is a pool itself, so it cannot be used together with the "
         "pool of RMM_POOL_MAX_SIZE:"},
        {{"RMM_RESOURCE=arena(cuda)", "RMM_ARENA_SIZE=1GiB"},
         "RMM_ARENA_SIZE=1GiB: RMM_RESOURCE already says which memory resources"},
        {{"RMM_ARENA_SIZE=1000KiB"}, "RMM_ARENA_SIZE=^1000KiB: "},
        {{"RMM_ARENA_SIZE=9999TiB"}, "RMM_ARENA_SIZE=^9999TiB: more than 128TiB"},
        {{"RMM_MANAGED_RESOURCE=pool(cuda)"},
         "RMM_MANAGED_RESOURCE=pool(^cuda): managed memory must come from the memory resource "
         "'managed', not from '"},
        {{"RMM_MANAGED_RESOURCE=pool(pinned)"},
         "RMM_MANAGED_RESOURCE=pool(^pinned): managed memory must come from the memory resource "
         "'managed', not from '"},
        {{"RMM_MANAGED_RESOURCE=managed", "RMM_MANAGED_POOL_SIZE=1GiB"},
         "RMM_MANAGED_POOL_SIZE=1GiB: RMM_MANAGED_RESOURCE already says which memory resources"},
        {{"RMM_MANAGED_RESOURCE=pool(managed, alignment=4KiB)"},
         "RMM_MANAGED_RESOURCE=^pool(managed, alignment=4KiB): alignment of 'pool' must be a "
         "multiple of 64KiB"},
        {{"RMM_MANAGED_RESOURCE=binning(pool(managed), minimum_size=4KiB, maximum_size=1MiB)"},
         "RMM_MANAGED_RESOURCE=^binning(pool(managed), minimum_size=4KiB...: minimum_size of "
         "'binning' must be"},
        {{"RMM_MANAGED_RESOURCE=binning(pool(managed), bins=64KiB+100000)"},
         "RMM_MANAGED_RESOURCE=^binning(pool(managed), bins=64KiB+100000...: each size in 'bins' "
         "of 'binning' must be a multiple of 64KiB for managed memory, so that no two blocks share "
         "a page"},
        {{"RMM_MANAGED_RESOURCE=arena(managed)"},
         "RMM_MANAGED_RESOURCE=^arena(managed): 'arena' cannot serve managed memory, because "
         "two of its blocks could share a page (64KiB): use 'pool'"},
        {{"RMM_MANAGED_RESOURCE=fallback(managed, cuda)"},
         "RMM_MANAGED_RESOURCE=fallback(managed, ^cuda): managed memory must come from the memory "
         "resource 'managed', not from '"},
        {{"RMM_MANAGED_POOL_SIZE=1GB1"}, "RMM_MANAGED_POOL_SIZE=1^GB1: "},
        {{"RMM_HOOKS=manged"},
         "RMM_HOOKS=^manged: unknown group of functions; did you mean 'managed'?"},
        {{"RMM_HOOKS=device,xyz"},
         "RMM_HOOKS=device,^xyz: unknown group of functions; the possible groups are device, "},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_config config;
        struct lines lines;

        if (parse_strictly(cases[i].settings, &lines, &config) != 1 || lines.count != 1)
            fail_msg("case %zu: %u lines: %s", i, lines.count, lines.count ? lines.text[0] : "");
        if (strncmp(lines.text[0], cases[i].line, strlen(cases[i].line)) != 0)
            fail_msg("case %zu: %s", i, lines.text[0]);
        rs_config_free(&config);
    }
}

/* What a setting of this name is, as counts of errors and of lines. */
static void expect_of_name(const char *name, const char *beside, unsigned errors, unsigned count)
{
    char setting[80];
    const char *const settings[] = {setting, beside, NULL};
    const char *const behind[] = {beside ? beside : setting, setting, NULL};
    struct rs_config config;
    struct lines lines;

    snprintf(setting, sizeof(setting), "%s=1GiB", name);
    for (int turn = 0; turn < 2; turn++) {
        if (parse(turn ? behind : settings, &lines, &config) != errors || lines.count != count)
            fail_msg("%s beside %s: %u lines: %s", name, beside ? beside : "nothing", lines.count,
                     lines.count ? lines.text[0] : "");
        if (count)
            assert_int_equal(strstr(lines.text[0], ": ignored: ") == NULL, errors);
        rs_config_free(&config);
        if (!beside)
            return;
    }
}

static const char *const settings_of_ours[] = {"RMM_LIMIT_3=4GiB", "RMM_VERBOSE=0",
                                               "RMM_POOL_SIZE=0", "RMMSHIM_JOB=1:2:3"};
static const char *const nothing_of_ours[] = {NULL,        "RMM_LIMIT=",   "RMM_LOG_LEVEL=1",
                                              "RMM_FOO=1", "RMMSHIM_JOB=", "RMMSHIM_LIBRARY=x",
                                              "rmm_pool=1"};

TEST(a_name_like_ours_is_an_error_only_beside_a_setting_of_ours)
{
    static const char *const names[] = {"RMM_POOL",           "RMM_POOL_1",
                                        "RMM_POOLSIZE",       "RMM_LIMITS",
                                        "RMM_LMTI",           "RMM_LOGS",
                                        "RMM_MANAGE",         "RMM_ON",
                                        "RMM_PINNED",         "RMM_POOL_SIZE_MAX",
                                        "RMM_LOG_COLOR",      "RMM_JOB_ID",
                                        "RMM_FREE_LIST",      "RMM_VERBOSE_LOGGING",
                                        "RMM_LOG_LEVEL_FILE", "RMM_INITIAL_POOL_SIZE",
                                        "RMM_LOG_DIRECTORY",  "RMM_Pool",
                                        "RMM_POOL_ALLOCATOR", "RMM_ALLOCATION_LIMIT_1"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++) {
        for (size_t j = 0; j < RS_ARRAY_LENGTH(nothing_of_ours); j++)
            expect_of_name(names[i], nothing_of_ours[j], 0, 1);
        for (size_t j = 0; j < RS_ARRAY_LENGTH(settings_of_ours); j++)
            expect_of_name(names[i], settings_of_ours[j], 1, 1);
    }
}

TEST(a_name_of_ours_written_otherwise_is_an_error)
{
    static const char *const names[] = {"RMM_Limit",        "rmm_limit",       "Rmm_Pool_Size_1",
                                        "RMM_LIMIT_GPU0",   "RMM_LIMIT_GPU",   "RMM_LIMIT_100",
                                        "RMM_LIMIT_007",    "RMM_LIMIT_gpu_1", "RMM_LIMIT_ALL",
                                        "RMM_LIMIT_",       "RMM_LIMIT_A",     "RMM_LIMIT_CUDA0",
                                        "RMM_LIMIT_device", "RMM_VERBOSE_1",   "RMM_VERBOSE_GPU1"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++) {
        for (size_t j = 0; j < RS_ARRAY_LENGTH(nothing_of_ours); j++)
            expect_of_name(names[i], nothing_of_ours[j], 1, 1);
        expect_of_name(names[i], settings_of_ours[0], 1, 1);
    }
}

TEST(a_name_in_use_elsewhere_is_ignored)
{
    static const char *const names[] = {"RMM_LOG_LEVEL",      "RMM_LOG_DIR", "RMM_LOG_FILE",
                                        "RMM_DEBUG_LOG_FILE", "RMM_DEVICES", "RMM_ALLOCATOR",
                                        "RMM_ASYNC_ALLOC",    "RMM_JOBS",    "RMM_MANAGED_MEMORY",
                                        "RMM_TREE",           "RMM_LOGGING", "RMM_LOGGING_LEVEL",
                                        "RMM_LOGGINGS",       "RMM_FOO",     "RMM_TAG"};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(names); i++) {
        for (size_t j = 0; j < RS_ARRAY_LENGTH(nothing_of_ours); j++)
            expect_of_name(names[i], nothing_of_ours[j], 0, 0);
        for (size_t j = 0; j < RS_ARRAY_LENGTH(settings_of_ours); j++)
            expect_of_name(names[i], settings_of_ours[j], 0, 0);
    }
}

TEST(a_name_too_long_to_be_one_of_ours_is_ignored)
{
    char setting[4 * RS_NAME_BYTES_MAX] = "RMM_POOL_SIZE_";
    const char *const settings[] = {setting, "RMM_LIMIT=1GiB", NULL};
    struct rs_config config;
    struct lines lines;

    memset(setting + strlen(setting), 'X', 2 * (size_t)RS_NAME_BYTES_MAX);
    strcat(setting, "=1GiB");
    assert_int_equal(parse(settings, &lines, &config), 0);
    assert_int_equal(lines.count, 0);
    rs_config_free(&config);
}

TEST(a_name_writes_no_escapes_to_the_terminal)
{
    static const char *const settings[] = {"RMM_POOL_SIZ\033=1GiB", NULL};
    struct rs_config config;
    struct lines lines;

    assert_int_equal(parse(settings, &lines, &config), 0);
    assert_int_equal(lines.count, 1);
    assert_null(strchr(lines.text[0], '\033'));
    rs_config_free(&config);
}

/* One setting is bad, and its one line asks that. */
static void expect_question(const char *setting, const char *question)
{
    const char *const settings[] = {setting, NULL};
    struct rs_config config;
    struct lines lines;

    if (parse(settings, &lines, &config) != 1 || lines.count != 1)
        fail_msg("%s: %u lines", setting, lines.count);
    if (!strstr(lines.text[0], question))
        fail_msg("%s: %s", setting, lines.text[0]);
    rs_config_free(&config);
}

static const struct {
    const char *text, *question;
} fractions[] = {
    {"0.5", "did you mean 50%?"},           {"1.0", "did you mean 100% or 1GiB?"},
    {"1.00", "did you mean 100% or 1GiB?"}, {"8.0", "did you mean 8GiB?"},
    {"1.5", "did you mean 1.5GiB?"},
};

static unsigned expect_questions_of_option(const struct rs_mr_descriptor *descriptor,
                                           const struct rs_option *row)
{
    char setting[160];

    if (row->type != RS_OPTION_SIZE)
        return 0;
    for (size_t i = 0; i < RS_ARRAY_LENGTH(fractions); i++) {
        (void)snprintf(setting, sizeof(setting), "RMM_RESOURCE=%s(%s%s=%s)", descriptor->name,
                       descriptor->upstream_count > 1   ? "cuda, cuda, "
                       : descriptor->upstream_count > 0 ? "cuda, "
                                                        : "",
                       row->name, fractions[i].text);
        expect_question(setting, fractions[i].question);
    }
    return 1;
}

TEST(a_part_of_a_byte_is_asked_about_wherever_a_size_is_given)
{
    unsigned variables = 0, options = 0;
    char setting[80];

    for (size_t i = 0; rs_variables[i].option.name; i++) {
        if (rs_variables[i].option.type != RS_OPTION_SIZE)
            continue;
        variables++;
        for (size_t j = 0; j < RS_ARRAY_LENGTH(fractions); j++) {
            (void)snprintf(setting, sizeof(setting), "%s=%s", rs_variables[i].option.name,
                           fractions[j].text);
            expect_question(setting, fractions[j].question);
        }
    }
    for (size_t i = 0; rs_mr_descriptors[i]; i++)
        for (const struct rs_option *row = rs_mr_descriptors[i]->options; row->name; row++)
            options += expect_questions_of_option(rs_mr_descriptors[i], row);
    assert_true(variables >= 6 && options >= 12);
}

TEST(all_bad_settings_are_told_at_once)
{
    static const char *const settings[] = {"RMM_POOL_SIZE=x", "RMM_BINNING=y", "RMM_POOLSIZE=1",
                                           "RMM_ON_ERROR=deny", NULL};
    struct rs_config config;
    struct lines lines;

    assert_int_equal(parse(settings, &lines, &config), 3);
    assert_int_equal(lines.count, 3);
    assert_int_equal(config.on_error, RS_ON_ERROR_DENY);
    rs_config_free(&config);
}

TEST(process_wide_settings_are_read)
{
    static const char *const settings[] = {"RMM_STATISTICS=json:/tmp/%p.json",
                                           "RMM_ON_ERROR=passthrough",
                                           "RMM_VERBOSE=on",
                                           "RMM_HOOKS=device",
                                           "RMM_PHASES=nvtx",
                                           NULL};
    struct rs_config config;
    struct lines lines;

    assert_int_equal(parse(settings, &lines, &config), 0);
    assert_true(config.nvtx_phases);
    assert_int_equal(config.statistics, RS_STATISTICS_JSON);
    assert_string_equal(config.statistics_path, "/tmp/%p.json");
    assert_int_equal(config.on_error, RS_ON_ERROR_PASSTHROUGH);
    assert_true(config.verbose);
    assert_int_equal(config.hook_groups, RS_HOOK_GROUP_DEVICE);
    rs_config_free(&config);
}

TEST(what_tracks_is_reported)
{
    static const struct {
        const char *settings[SETTINGS_MAX];
        enum rs_statistics_format format;
        const char *path;
    } cases[] = {
        {{"RMM_POOL_SIZE=1GiB"}, RS_STATISTICS_NONE, NULL},
        {{"RMM_TRACKING=1"}, RS_STATISTICS_TEXT, NULL},
        {{"RMM_TRACKING=text:/tmp/x"}, RS_STATISTICS_TEXT, "/tmp/x"},
        {{"RMM_TRACKING=json:/tmp/x"}, RS_STATISTICS_JSON, "/tmp/x"},
        {{"RMM_RESOURCE=tracking(cuda)"}, RS_STATISTICS_TEXT, NULL},
        {{"RMM_RESOURCE_3=tracking(cuda)"}, RS_STATISTICS_TEXT, NULL},
        {{"RMM_RESOURCE=tracking(cuda)", "RMM_TRACKING=0"}, RS_STATISTICS_NONE, NULL},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_config config;
        struct lines lines;
        assert_int_equal(parse(cases[i].settings, &lines, &config), 0);
        assert_int_equal(config.tracking, cases[i].format);
        assert_int_equal(config.tracking_path != NULL, cases[i].path != NULL);
        if (cases[i].path)
            assert_string_equal(config.tracking_path, cases[i].path);
        rs_config_free(&config);
    }
}

TEST(the_report_at_out_of_memory_is_a_format_or_none)
{
    static const struct {
        const char *setting;
        enum rs_statistics_format format;
        const char *path;
        bool is_served; /* by a stack of its own */
    } cases[] = {
        {"RMM_ON_OOM=text", RS_STATISTICS_TEXT, NULL, true},
        {"RMM_ON_OOM=text:/tmp/x", RS_STATISTICS_TEXT, "/tmp/x", true},
        {"RMM_ON_OOM=json:/tmp/x", RS_STATISTICS_JSON, "/tmp/x", true},
        {"RMM_ON_OOM=none", RS_STATISTICS_NONE, NULL, false},
        {"RMM_ON_OOM=0", RS_STATISTICS_NONE, NULL, false},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        const char *const settings[SETTINGS_MAX] = {cases[i].setting};
        struct rs_config config;
        struct lines lines;
        assert_int_equal(parse(settings, &lines, &config), 0);
        assert_true(config.on_oom_given);
        assert_int_equal(config.on_oom, cases[i].format);
        assert_int_equal(config.on_oom_path != NULL, cases[i].path != NULL);
        if (cases[i].path)
            assert_string_equal(config.on_oom_path, cases[i].path);
        assert_int_equal(config.anything_set, cases[i].is_served);
        rs_config_free(&config);
    }
}

TEST(no_environment_is_no_settings)
{
    struct rs_config config;
    struct lines lines;

    assert_int_equal(rs_config_parse(NULL, lines_begin(&lines), &config), 0);
    assert_false(config.anything_set);
    assert_null(rs_config_stack(&config, RS_KIND_DEVICE, 0));
    rs_config_free(&config);
}

TEST(stream_ordered_memory_is_served_where_asked_for)
{
    static const struct {
        const char *settings[SETTINGS_MAX];
        unsigned groups;
    } cases[] = {
        {{"RMM_POOL_SIZE=1GiB"}, RS_HOOK_GROUPS_ALL - RS_HOOK_GROUP_ASYNC},
        {{"RMM_HOOKS=all"}, RS_HOOK_GROUPS_ALL},
        {{"RMM_HOOKS=async"}, RS_HOOK_GROUP_ASYNC},
        {{"RMM_HOOKS=pinned,async"}, RS_HOOK_GROUP_PINNED | RS_HOOK_GROUP_ASYNC},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        struct rs_config config;
        struct lines lines;
        assert_int_equal(parse(cases[i].settings, &lines, &config), 0);
        assert_int_equal(config.hook_groups, cases[i].groups);
        rs_config_free(&config);
    }
}

TEST(hooks_of_the_runtime_bring_the_drivers_device_memory)
{
    static const char *const settings[] = {"RMM_HOOKS=runtime", NULL};
    struct rs_config config;
    struct lines lines;

    assert_int_equal(parse(settings, &lines, &config), 0);
    assert_int_equal(config.hook_groups, RS_HOOK_GROUP_DEVICE | RS_HOOK_GROUP_RUNTIME);
    rs_config_free(&config);
}

/* What a program pushes is a whole stack: only RMM_FREE adds to it. */
TEST(a_pushed_expression_gets_only_the_free_mode_of_the_settings)
{
    static const struct {
        const char *setting, *expression, *stack;
    } cases[] = {
        {"PATH=/bin", "pool(cuda)", "reuse(pool(cuda))"}, /* nothing set */
        {"RMM_POOL_SIZE=1GiB", "pool(cuda)", "reuse(pool(cuda))"},
        {"RMM_STATISTICS=1", "cuda", "cuda"},
        {"RMM_FREE=immediate", "pool(cuda)", "pool(cuda)"},
        {"RMM_FREE=wait", "statistics(pool(cuda))", "statistics(reuse(pool(cuda), free=wait))"},
        {"RMM_FREE_1=immediate", "pool(cuda)", "reuse(pool(cuda))"},
        {"RMM_POOL_SIZE=1GiB", "pool(pinned)", NULL},
        {"RMM_POOL_SIZE=1GiB", "pool(cuda", NULL},
        {"RMM_POOL_SIZE=1GiB", "pool(cuda, initial_size=2GiB, maximum_size=1GiB)", NULL},
    };

    for (size_t i = 0; i < RS_ARRAY_LENGTH(cases); i++) {
        const char *const settings[] = {cases[i].setting, NULL};
        struct rs_source source = {"expression", cases[i].expression};
        char text[RS_EXPRESSION_TEXT_BYTES];
        struct rs_expression *stack;
        struct rs_config config;
        struct lines lines;

        assert_int_equal(parse(settings, &lines, &config), 0);
        stack = rs_config_expression(&config, &source, lines_begin(&lines));
        assert_int_equal(lines.count, cases[i].stack ? 0 : 1);
        if (cases[i].stack)
            assert_string_equal(rs_expression_format(stack, NULL, text), cases[i].stack);
        else
            assert_null(stack);
        rs_expression_free(stack);
        rs_config_free(&config);
    }
}
