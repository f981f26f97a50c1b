/* SPDX-License-Identifier: Apache-2.0 */
#include "config/variables.h"

static const char *const control_words[] = {"calls", "thread", NULL};
static const char *const fallback_words[] = {"managed", "pinned", NULL};
static const char *const free_words[] = {"deferred", "wait", "immediate", NULL};
static const char *const ipc_words[] = {"shared", "dedicated", NULL};
static const char *const memory_type_words[] = {"requested", "actual", NULL};
static const char *const on_error_words[] = {"abort", "passthrough", "deny", NULL};

const char *const rs_kind_names[RS_KINDS] = {"device", "pinned", "managed"};
const char *const rs_kind_texts[RS_KINDS] = {"", ", pinned memory", ", managed memory"};

#define VARIABLE(index, variable_name, value_type, text, ...)                                      \
    [RS_VARIABLE_##index] = {                                                                      \
        .option = {.name = (variable_name), .type = RS_OPTION_##value_type, .help = (text)},       \
        __VA_ARGS__}
/* Bytes of memory: nobody means 8 of them, nor more than there are addresses. */
#define OF_MEMORY .option.unit_below = 1 << 20, .option.maximum = RS_SIZE_ADDRESSABLE
/* Of memory that may be managed. */
#define OF_ANY_MEMORY OF_MEMORY, .option.beyond_whole = true

const struct rs_variable rs_variables[] = {
    VARIABLE(RESOURCE, "RMM_RESOURCE", TEXT,
             "the stack as an expression, as in statistics(pool(cuda, initial_size=4GiB))",
             .per_device = true),
    VARIABLE(POOL_SIZE, "RMM_POOL_SIZE", SIZE,
             "a pool, and what it takes from the driver at the first allocation; with "
             "RMM_MANAGED=1 more than 100% too",
             .per_device = true, .builds_a_part = true, .option.multiple_of = 256, OF_ANY_MEMORY,
             .guide_words = {{"RMM_INITIAL_POOL_SIZE", false},
                             {"RMM_POOL_ALLOCATOR", false},
                             {"RMM_DEVICES", true}}),
    VARIABLE(POOL_MAX_SIZE, "RMM_POOL_MAX_SIZE", SIZE,
             "a pool, and the most it may hold; it starts empty without RMM_POOL_SIZE",
             .per_device = true, .builds_a_part = true, .option.minimum = 256,
             .option.multiple_of = 256, OF_ANY_MEMORY,
             .guide_words = {{"RMM_MAXIMUM_POOL_SIZE", false}}),
    VARIABLE(ARENA_SIZE, "RMM_ARENA_SIZE", SIZE,
             "an arena instead of a pool: all it may hold, taken at the first allocation; each "
             "thread has a part of its own",
             .per_device = true, .builds_a_part = true, .option.minimum = 1 << 20,
             .option.maximum = 1ull << 40, .option.unit_below = 1 << 20,
             .option.beyond_whole = true),
    VARIABLE(BINNING, "RMM_BINNING", RANGE,
             "bins of equal blocks, one per power of two in this range, over the pool",
             .per_device = true, .builds_a_part = true, .option.minimum = 512),
    VARIABLE(MANAGED, "RMM_MANAGED", BOOLEAN, "managed memory stands in for device memory",
             .per_device = true, .builds_a_part = true,
             .guide_words = {{"RMM_MANAGED_MEMORY", false}}),
    VARIABLE(ASYNC, "RMM_ASYNC", BOOLEAN,
             "the driver's stream-ordered pool beneath, with RMM_MANAGED=1 a managed one",
             .per_device = true, .builds_a_part = true),
    VARIABLE(FALLBACK, "RMM_FALLBACK", WORD,
             "what the device has no memory for lies in managed memory, which migrates, or in "
             "pinned host memory, instead of failing",
             .per_device = true, .builds_a_part = true, .option.words = fallback_words),
    VARIABLE(PREFETCH, "RMM_PREFETCH", BOOLEAN,
             "each new block of managed memory is moved to the device at once", .per_device = true,
             .builds_a_part = true),
    VARIABLE(MEMORY_TYPE, "RMM_MEMORY_TYPE", WORD,
             "what pointer attributes call memory that was asked for as device memory and lies "
             "elsewhere (managed, pinned, the system's): device memory (requested), or what it is "
             "(actual)",
             .option.words = memory_type_words),
    VARIABLE(FREE, "RMM_FREE", WORD,
             "when a freed block is reused: after all earlier work of its context, at no cost to "
             "the free (deferred); the same, and the free itself waits for that work, as cudaFree "
             "does (wait); at once, for device memory of a program that uses one stream "
             "(immediate)",
             .per_device = true, .option.words = free_words),
    VARIABLE(LIMIT, "RMM_LIMIT", SIZE,
             "the most that the process takes from the driver on a device, over all contexts and "
             "ways to allocate, cached memory included; as managed memory counts, more than 100% "
             "too",
             .per_device = true, .option.minimum = 1, OF_ANY_MEMORY,
             .guide_words = {{"RMM_ALLOCATION_LIMIT", false}}),
    VARIABLE(LIMIT_JOB, "RMM_LIMIT_JOB", SIZE,
             "the most that all processes of a job together take from the driver on a device; "
             "`rmmshim run --limit-job` makes the job",
             .option.minimum = 1, OF_MEMORY),
    VARIABLE(JOB, "RMM_JOB", TEXT,
             "the file by which processes are one job for RMM_LIMIT_JOB where no `rmmshim run` "
             "holds it; only its owner may have access to it"),
    VARIABLE(IPC, "RMM_IPC", WORD,
             "device memory for other processes (cudaIpcGetMemHandle): blocks of a pool too, which "
             "the other process opens under rmmshim (shared); or no pool, every block an "
             "allocation of the driver's own, which any process can open (dedicated)",
             .per_device = true, .option.words = ipc_words),
    VARIABLE(PINNED_RESOURCE, "RMM_PINNED_RESOURCE", TEXT,
             "the stack for pinned host memory, as in pool(pinned, initial_size=1GiB)",
             .per_device = true, .kind = RS_KIND_PINNED),
    VARIABLE(PINNED_POOL_SIZE, "RMM_PINNED_POOL_SIZE", SIZE,
             "a pool of pinned host memory, and what it takes at the first allocation of it; a "
             "percentage is of the host's memory",
             .per_device = true, .builds_a_part = true, .kind = RS_KIND_PINNED,
             .option.multiple_of = 256, OF_MEMORY),
    VARIABLE(MANAGED_RESOURCE, "RMM_MANAGED_RESOURCE", TEXT,
             "the stack for cudaMallocManaged, as in pool(managed, initial_size=1GiB)",
             .per_device = true, .kind = RS_KIND_MANAGED),
    VARIABLE(MANAGED_POOL_SIZE, "RMM_MANAGED_POOL_SIZE", SIZE,
             "a pool for cudaMallocManaged, and what it takes at the first allocation of it; a "
             "percentage is of the device's memory, and may be more than 100%",
             .per_device = true, .builds_a_part = true, .kind = RS_KIND_MANAGED,
             .option.multiple_of = 256, OF_ANY_MEMORY),
    VARIABLE(STATISTICS, "RMM_STATISTICS", TEXT,
             "a report at exit: 1 or text (stderr), text:PATH, json:PATH, prom:PATH"),
    VARIABLE(TRACKING, "RMM_TRACKING", TEXT,
             "a leak report at exit, by call site: 1 or text (stderr), text:PATH, json:PATH",
             .guide_words = {{"RMM_TRACK_ALLOCATIONS", false}}),
    VARIABLE(LOG, "RMM_LOG", TEXT,
             "path of an event log in RMM's CSV format; %p is the process, %h the host, %e the "
             "program, %t the start time, %r the rank, %q{VAR} a variable",
             .per_device = true,
             .guide_words = {{"RMM_LOGGING", false},
                             {"RMM_LOG_FILE_NAME", false},
                             {"RMM_LOG_DIRECTORY", false}}),
    VARIABLE(
        CONTROL, "RMM_CONTROL", WORD,
        "serve the process so that `rmmshim limit` and `rmmshim trim` can steer it: at its next "
        "call that allocates, frees or synchronises (calls), or also between such calls, by a "
        "thread of the library's (thread)",
        .option.words = control_words),
    VARIABLE(VERBOSE, "RMM_VERBOSE", BOOLEAN, "print the stack that the settings amount to"),
    VARIABLE(ON_ERROR, "RMM_ON_ERROR", WORD,
             "after a bad setting: end the process at its first CUDA allocation (abort, exit code "
             "78), run it untouched (passthrough) or answer out of memory (deny)",
             .option.words = on_error_words),
    VARIABLE(HOOKS, "RMM_HOOKS", TEXT,
             "groups of entry points that serve memory, separated by commas: device, pinned, "
             "managed, runtime, async (cudaMallocAsync), all; where not set: all but async"),
    {.option = {.name = NULL}},
};
