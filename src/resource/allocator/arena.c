/* SPDX-License-Identifier: Apache-2.0 */
/* arena: one upstream block of a fixed size, served by first fit; each thread takes small requests
 * from superblocks of its own.  RMM's arena_memory_resource.
 *
 * The arena never holds more than arena_size.  A device's first context takes it at creation, or as
 * much of it as is free.  Other contexts take theirs at their first allocation, as most contexts
 * make none.  Where less than arena_size is free by then, they take the largest part that halving
 * finds, and the rest when a request finds no room.  Memory taken at creation stays when the arena
 * is trimmed: it was set aside for the program, and another process might take it.  Memory taken
 * later goes back once it is wholly free.
 *
 * Blocks that are small beside the arena, or beside the largest request so far, lie at its upper
 * end, where RMM uses first fit for all: a small block that lives on among large ones would split
 * the memory that they leave.
 *
 * Blocks are rounded up to 512 bytes, the driver's unit, where RMM rounds up to 256. */
#include "base/file.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/path.h"
#include "heap/alignment.h"
#include "heap/arena_heap.h"
#include "heap/size_class.h"
#include "resource/report.h"
#include "resource/resource.h"
#include "shared/published.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct arena_config {
    size_t arena_size;
    bool size_classes;
    bool dump_log_on_failure;
    const char *dump_path;
};

/* One upstream allocation. */
struct chunk {
    struct rs_arena_range range;
    struct chunk *next;
    struct rs_allocation upstream;
    bool is_initial; /* stays when the arena is trimmed */
};

struct arena {
    struct rs_mr base;
    const struct rs_environment *environment;
    size_t arena_bytes;
    bool size_classes;
    struct rs_arena_heap *heap;
    _Atomic uint64_t failures;

    struct rs_mutex lock;   /* protects the fields below; never held around an upstream call */
    pthread_cond_t settled; /* signalled when an upstream call ended: look again */
    bool is_calling;        /* an upstream call is under way; one at a time */
    struct chunk *chunks;
    size_t held_bytes, peak_held_bytes;
    uint64_t chunk_returns;

    struct rs_mutex dump_lock; /* one dump at a time */
    char dump_path[];          /* empty: no dump */
};

static struct arena *arena_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct arena, base);
}

/* ---- upstream ---- */

/* True for a refusal after which a smaller request may succeed. */
static bool is_refusal(CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY || result == CUDA_ERROR_NOT_READY;
}

/* Asks upstream for a chunk.  The first chunk is the largest that halving finds, as an arena in
 * pieces serves no request larger than a piece.  Later chunks have all missing bytes, or the bytes
 * needed now.  Called without the lock. */
static CUresult ask_upstream(struct arena *arena, enum rs_effort effort, size_t ask_bytes,
                             size_t least_bytes, bool is_first, struct rs_allocation *out)
{
    size_t free_bytes = rs_environment_free_bytes(arena->environment, arena->base.memories);

    for (;;) {
        bool is_ahead = ask_bytes > least_bytes;
        /* on the NULL stream, as chunks serve all streams */
        CUresult result = rs_mr_allocate_with(arena->base.upstream[0], ask_bytes, NULL,
                                              is_ahead ? effort | RS_EFFORT_AHEAD : effort, out);

        if (!is_refusal(result) || ask_bytes == least_bytes)
            return result;
        if (is_first && free_bytes < ask_bytes && free_bytes > ask_bytes / 2)
            ask_bytes = free_bytes; /* the bytes that were free a moment ago */
        else
            ask_bytes = is_first ? ask_bytes / 2 : 0;
        ask_bytes = rs_max(rs_round_down(ask_bytes, RS_DRIVER_GRANULARITY), least_bytes);
        free_bytes = 0;
    }
}

/* The caller holds the lock. */
static void add_chunk(struct arena *arena, struct chunk *chunk)
{
    RS_ASSERT(chunk->upstream.size_bytes <= arena->arena_bytes - arena->held_bytes);
    RS_ASSERT(chunk->upstream.address % RS_BLOCK_ALIGNMENT == 0);
    chunk->next = arena->chunks;
    arena->chunks = chunk;
    arena->held_bytes += chunk->upstream.size_bytes;
    arena->peak_held_bytes = rs_max(arena->peak_held_bytes, arena->held_bytes);
    rs_arena_heap_add(arena->heap, &chunk->range, chunk->upstream.address,
                      chunk->upstream.size_bytes);
}

static struct chunk *prepare_chunk(struct arena *arena, bool is_initial)
{
    struct chunk *chunk = calloc(1, sizeof(*chunk));

    if (!chunk)
        return NULL;
    chunk->is_initial = is_initial;
    if (rs_arena_range_prepare(arena->heap, &chunk->range))
        return chunk;
    free(chunk);
    return NULL;
}

static void free_chunk(struct arena *arena, struct chunk *chunk)
{
    rs_arena_range_unprepare(arena->heap, &chunk->range);
    free(chunk);
}

static void begin_call(struct arena *arena)
{
    RS_ASSERT(!arena->is_calling);
    arena->is_calling = true;
    rs_mutex_unlock(&arena->lock);
}

static void end_call(struct arena *arena)
{
    rs_mutex_lock(&arena->lock);
    RS_ASSERT(arena->is_calling);
    arena->is_calling = false;
    pthread_cond_broadcast(&arena->settled);
}

/* Waits without a bound for another thread's upstream call: it takes memory that this thread needs
 * too, and this thread's own call would only wait behind it in the driver. */
static void wait_until_settled(struct arena *arena)
{
    while (arena->is_calling)
        rs_condition_wait(&arena->settled, &arena->lock);
}

/* Takes a new chunk of least_bytes or more.  Called and left with the lock held, which is released
 * in between.  All host memory is taken first, so no upstream call has to be undone. */
static CUresult take_chunk(struct arena *arena, enum rs_effort effort, size_t least_bytes,
                           bool is_initial)
{
    bool is_first = arena->held_bytes == 0;
    size_t ask_bytes = arena->arena_bytes - arena->held_bytes;
    struct chunk *chunk = prepare_chunk(arena, is_initial);
    CUresult result;

    if (!chunk)
        return CUDA_ERROR_OUT_OF_MEMORY;
    RS_ASSERT(least_bytes > 0 && least_bytes <= ask_bytes);
    begin_call(arena);
    result = ask_upstream(arena, effort, ask_bytes, least_bytes, is_first, &chunk->upstream);
    end_call(arena);
    if (result == CUDA_SUCCESS)
        add_chunk(arena, chunk);
    else
        free_chunk(arena, chunk);
    return result;
}

/* Takes more memory for the request, unless `moves` shows that other threads freed some since.
 * CUDA_SUCCESS when there may be room for it now. */
static CUresult grow(struct arena *arena, enum rs_effort effort, size_t request_bytes,
                     uint64_t moves)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    size_t missing_bytes, least_bytes;

    rs_mutex_lock(&arena->lock);
    wait_until_settled(arena);
    missing_bytes = arena->arena_bytes - arena->held_bytes;
    least_bytes = rs_min(rs_max(request_bytes, RS_SUPERBLOCK_BYTES), missing_bytes);
    if (rs_arena_heap_moves(arena->heap) != moves)
        result = CUDA_SUCCESS;
    else if (least_bytes >= request_bytes)
        result = take_chunk(arena, effort, least_bytes, false);
    rs_mutex_unlock(&arena->lock);
    return result;
}

/* Takes wholly free chunks, except for keep_bytes of them, out of the arena, and returns them as a
 * list.  The caller holds the lock. */
static struct chunk *detach_free_chunks(struct arena *arena, size_t keep_bytes)
{
    struct chunk *detached = NULL, **link = &arena->chunks;

    while (*link) {
        struct chunk *chunk = *link;
        bool stays = chunk->is_initial;
        if (!stays && chunk->upstream.size_bytes <= keep_bytes) {
            keep_bytes -= chunk->upstream.size_bytes;
            stays = true;
        }
        if (stays || !rs_arena_heap_remove(arena->heap, &chunk->range)) {
            link = &chunk->next;
            continue;
        }
        *link = chunk->next;
        RS_ASSERT(arena->held_bytes >= chunk->upstream.size_bytes);
        arena->held_bytes -= chunk->upstream.size_bytes;
        chunk->next = detached;
        detached = chunk;
    }
    return detached;
}

/* Gives a list of chunks upstream; chunks that upstream refuses stay in the list.  Called without
 * the lock. */
static size_t give_upstream(struct arena *arena, struct chunk **link)
{
    size_t returned_bytes = 0;

    for (const struct chunk *each = *link; each; each = each->next)
        rs_account_begin_return(arena->environment->account, each->upstream.size_bytes);
    while (*link) {
        struct chunk *chunk = *link;
        CUresult result = rs_mr_deallocate(arena->base.upstream[0], &chunk->upstream, NULL);

        rs_account_end_return(arena->environment->account, chunk->upstream.size_bytes);
        if (result != CUDA_SUCCESS) {
            link = &chunk->next;
            continue;
        }
        returned_bytes += chunk->upstream.size_bytes;
        *link = chunk->next;
        free_chunk(arena, chunk);
    }
    return returned_bytes;
}

static bool arena_check(struct rs_mr *mr);

static size_t arena_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct arena *arena = arena_of(mr);
    size_t returned_bytes = 0;
    struct chunk *chunk, *next;

    (void)rs_arena_heap_drain(arena->heap);
    rs_mutex_lock(&arena->lock);
    /* the call may be this very thread's, or that of a thread that trims on its behalf */
    if (arena->is_calling && trim->is_reclaim) {
        rs_mutex_unlock(&arena->lock);
        return rs_mr_trim_with(mr->upstream[0], trim);
    }
    wait_until_settled(arena);
    chunk = detach_free_chunks(arena, trim->keep_bytes);
    if (chunk) {
        begin_call(arena); /* a thread that finds no room meanwhile waits, and then takes the memory
                              again */
        returned_bytes = give_upstream(arena, &chunk);
        end_call(arena);
        arena->chunk_returns += returned_bytes > 0;
    }
    for (; chunk; chunk = next) {
        next = chunk->next;
        add_chunk(arena, chunk); /* still ours */
    }
    rs_mutex_unlock(&arena->lock);
    RS_ASSERT_SLOW(arena_check(mr));
    return returned_bytes + rs_mr_trim_with(mr->upstream[0], trim);
}

/* ---- the dump ---- */

struct dump {
    int fd;
    size_t used_bytes;
    char buffer[4096];
};

static void flush_dump(struct dump *dump)
{
    (void)rs_write_all(dump->fd, dump->buffer, dump->used_bytes);
    dump->used_bytes = 0;
}

static void write_line(void *data, const char *line)
{
    struct dump *dump = data;
    size_t length = strlen(line);

    if (length > sizeof(dump->buffer) - dump->used_bytes)
        flush_dump(dump);
    memcpy(dump->buffer + dump->used_bytes, line, length);
    dump->used_bytes += length;
}

/* Dumps the arena at a failure.  The file has the latest dump only, as RMM's has. */
static void dump_failure(struct arena *arena, size_t size_bytes)
{
    static bool said;
    struct dump dump = {.used_bytes = 0};
    char line[200], size_text[RS_SIZE_TEXT_BYTES];

    rs_mutex_lock(&arena->dump_lock);
    dump.fd = rs_path_open_output(arena->dump_path);
    if (dump.fd >= 0) {
        snprintf(line, sizeof(line), "arena of device %d: no room for %s (%zu bytes)\n",
                 (int)arena->environment->device, rs_size_format(size_bytes, size_text),
                 size_bytes);
        write_line(&dump, line);
        rs_arena_heap_dump(arena->heap, write_line, &dump);
        flush_dump(&dump);
        rs_file_close(dump.fd);
    } else if (rs_log_once(&said)) {
        rs_log("arena: %s: cannot be opened: %s", arena->dump_path, strerror(-dump.fd));
    }
    rs_mutex_unlock(&arena->dump_lock);
}

/* ---- the resource ---- */

enum { ROUNDS_MAX = 16 };

/* False for sizes that exceed every arena. */
static bool units_for(const struct arena *arena, size_t size_bytes, uint32_t *units)
{
    size_t rounded_bytes = arena->size_classes ? rs_size_class(size_bytes) : size_bytes;

    if (!rs_round_up(rounded_bytes, RS_SPAN_UNIT, &rounded_bytes) ||
        rounded_bytes > arena->arena_bytes)
        return false;
    *units = (uint32_t)(rounded_bytes / RS_SPAN_UNIT);
    return true;
}

/* The rounds are bounded, as other threads could take each room that this one made. */
static CUresult allocate(struct arena *arena, size_t size_bytes, enum rs_effort effort,
                         struct rs_allocation *out)
{
    CUresult result, refusal = CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t units;

    RS_ASSERT(size_bytes > 0);
    if (!units_for(arena, size_bytes, &units))
        return refusal;
    for (unsigned round = 0; round < ROUNDS_MAX; round++) {
        uint64_t moves = rs_arena_heap_moves(arena->heap);
        struct rs_span *block = rs_arena_heap_take(arena->heap, size_bytes, units);

        if (block) {
            *out = (struct rs_allocation){block->address, size_bytes, block, NULL};
            return CUDA_SUCCESS;
        }
        result = rs_effort_is_held(effort) ? CUDA_ERROR_OUT_OF_MEMORY
                                           : grow(arena, effort, rs_span_bytes(units), moves);
        if (result != CUDA_SUCCESS && !is_refusal(result))
            return result;
        if (result != CUDA_SUCCESS)
            refusal = result;
        if (rs_arena_heap_moves(arena->heap) == moves)
            break;
    }
    return refusal;
}

static void note_failure(struct arena *arena, size_t size_bytes, CUresult result)
{
    atomic_fetch_add_explicit(&arena->failures, 1, memory_order_relaxed);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && arena->dump_path[0])
        dump_failure(arena, size_bytes);
}

/* No work uses an arena's free blocks any more, so they serve every stream (reuse.c).
 * RS_EFFORT_LITTLE takes no less: an arena never holds more than its size, and a small part of it
 * would serve no larger request as long as it is in use. */
static CUresult arena_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                               enum rs_effort effort, struct rs_allocation *out)
{
    struct arena *arena = arena_of(mr);
    CUresult result = rs_effort_result(
        effort, allocate(arena, size_bytes, rs_effort_without(effort, RS_EFFORT_LITTLE), out));

    (void)stream;
    if (RS_UNLIKELY(result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY))
        note_failure(arena, size_bytes, result);
    return result;
}

static CUresult arena_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                 CUstream stream)
{
    struct rs_span *block = allocation->token;

    (void)stream;
    RS_ASSERT(block->address == allocation->address);
    rs_arena_heap_give(arena_of(mr)->heap, block);
    return CUDA_SUCCESS;
}

static size_t arena_idle_bytes(struct rs_mr *mr)
{
    return rs_arena_heap_free_bytes(arena_of(mr)->heap);
}

static size_t arena_growable_bytes(struct rs_mr *mr)
{
    struct arena *arena = arena_of(mr);
    size_t bytes;

    rs_mutex_lock(&arena->lock);
    bytes = arena->arena_bytes - arena->held_bytes;
    rs_mutex_unlock(&arena->lock);
    return bytes;
}

static size_t arena_free_blocks(struct rs_mr *mr)
{
    return rs_arena_heap_free_spans(arena_of(mr)->heap);
}

static void arena_report(struct rs_mr *mr, struct rs_report *report)
{
    struct arena *arena = arena_of(mr);
    const char *name = mr->descriptor->name;
    struct rs_arena_heap_state state;
    size_t free_bytes;

    rs_arena_heap_state(arena->heap, &state);
    free_bytes = state.held_bytes > state.live_bytes ? state.held_bytes - state.live_bytes : 0;
#define ADD(counter, kind, unit, value)                                                            \
    rs_report_add(report, name, counter, RS_COUNTER_##kind, RS_UNIT_##unit, value)
    if (!rs_mutex_lock_bounded(&arena->lock, name))
        return;
    ADD("held", LIVE, BYTES, state.held_bytes);
    ADD("held_peak", PEAK, BYTES, arena->peak_held_bytes);
    ADD("live", LIVE, BYTES, state.live_bytes);
    ADD("lent", LIVE, BYTES, state.lent_bytes);
    ADD("lent_peak", PEAK, BYTES, state.peak_lent_bytes);
    ADD("free", LIVE, BYTES, free_bytes);
    ADD("largest_free", LARGEST, BYTES, state.largest_free_bytes);
    ADD("superblocks", LIVE, COUNT, state.superblocks);
    ADD("thread_arenas", LIVE, COUNT, state.thread_arenas);
    ADD("defragmentations", TOTAL, COUNT, state.drains);
    ADD("chunk_returns", TOTAL, COUNT, arena->chunk_returns);
    ADD("allocations", TOTAL, COUNT, state.allocations);
    ADD("failures", TOTAL, COUNT, atomic_load_explicit(&arena->failures, memory_order_relaxed));
    rs_mutex_unlock(&arena->lock);
#undef ADD
}

static bool arena_check(struct rs_mr *mr)
{
    struct arena *arena = arena_of(mr);
    size_t held_bytes = 0;
    bool good;

    rs_mutex_lock(&arena->lock);
    for (const struct chunk *chunk = arena->chunks; chunk; chunk = chunk->next)
        held_bytes += chunk->upstream.size_bytes;
    good = held_bytes == arena->held_bytes && held_bytes <= arena->arena_bytes;
    rs_mutex_unlock(&arena->lock);
    return rs_arena_heap_check(arena->heap) && good;
}

static void arena_destroy(struct rs_mr *mr, bool memory_is_gone)
{
    struct arena *arena = arena_of(mr);

    RS_ASSERT(!arena->is_calling);
    rs_arena_heap_destroy(arena->heap);
    while (arena->chunks) {
        struct chunk *chunk = arena->chunks;
        arena->chunks = chunk->next;
        if (!memory_is_gone)
            (void)rs_mr_deallocate(mr->upstream[0], &chunk->upstream, NULL);
        free(chunk);
    }
    pthread_cond_destroy(&arena->settled);
    rs_mutex_destroy(&arena->lock);
    rs_mutex_destroy(&arena->dump_lock);
    rs_published_free(arena);
}

/* ---- creation ---- */

/* Takes the arena, or as much of it as there is.  Less than asked for is a log line and no error:
 * the device may be shared, and the rest is asked for when it is needed. */
static int take_initial(struct arena *arena)
{
    char asked[RS_SIZE_TEXT_BYTES], got[RS_SIZE_TEXT_BYTES];
    CUresult result;

    rs_mutex_lock(&arena->lock);
    result = take_chunk(arena, RS_EFFORT_FULL, RS_SUPERBLOCK_BYTES, true);
    rs_mutex_unlock(&arena->lock);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY)
        return -EIO;
    if (arena->held_bytes < arena->arena_bytes)
        rs_log("arena: %s asked for, %s are free: starting with that",
               rs_size_format(arena->arena_bytes, asked), rs_size_format(arena->held_bytes, got));
    return 0;
}

static const struct rs_mr_ops arena_ops = {
    .allocate = arena_allocate,
    .deallocate = arena_deallocate,
    .destroy = arena_destroy,
    .trim = arena_trim,
    .excess_bytes = rs_mr_no_excess_bytes,
    .idle_bytes = arena_idle_bytes,
    .growable_bytes = arena_growable_bytes,
    .free_blocks = arena_free_blocks,
    .report = arena_report,
    .check = arena_check,
};

static bool dump_path(const struct arena_config *settings, const struct rs_environment *environment,
                      char path[PATH_MAX], const char **reason)
{
    const char *at;

    path[0] = '\0';
    return !settings->dump_log_on_failure ||
           rs_path_expand_for_device(settings->dump_path,
                                     environment ? (int)environment->device : 0, path, PATH_MAX,
                                     &at, reason);
}

/* The arena's size in whole units, within the option's bounds, which a share of the free memory may
 * exceed. */
static size_t arena_bytes(const struct arena_config *settings)
{
    size_t bytes = rs_min(settings->arena_size, rs_span_bytes(RS_SPAN_UNITS_MAX));

    return rs_max(rs_round_down(bytes, RS_SPAN_UNIT), RS_SUPERBLOCK_BYTES);
}

static int arena_create(const struct rs_environment *environment, const void *config,
                        struct rs_mr *const *upstream, struct rs_mr **out)
{
    const struct arena_config *settings = config;
    char path[PATH_MAX];
    const char *reason;
    struct arena *arena;
    int failed = 0;

    if (!dump_path(settings, environment, path, &reason)) {
        /* The path was validated: a variable in it has gone since. */
        rs_log("arena: %s: %s", settings->dump_path, reason);
        return -EINVAL;
    }
    arena = rs_published_allocate(sizeof(*arena) + strlen(path) + 1, _Alignof(struct arena));
    if (!arena)
        return -ENOMEM;
    arena->heap = rs_arena_heap_create();
    if (!arena->heap) {
        rs_published_free(arena);
        return -ENOMEM;
    }
    rs_mr_init(&arena->base, &arena_ops, &rs_mr_descriptor_arena, upstream);
    memcpy(arena->dump_path, path, strlen(path) + 1);
    arena->environment = environment;
    arena->arena_bytes = arena_bytes(settings);
    arena->size_classes = settings->size_classes;
    rs_mutex_init(&arena->lock, RS_RANK_RESOURCE);
    rs_mutex_init(&arena->dump_lock, RS_RANK_RESOURCE);
    pthread_cond_init(&arena->settled, NULL);
    if (environment->first_on_device)
        failed = take_initial(arena);
    if (failed) {
        arena_destroy(&arena->base, false);
        return failed;
    }
    *out = &arena->base;
    return 0;
}

static bool arena_validate(const void *config, const struct rs_environment *environment,
                           const struct rs_source *source, struct rs_diagnostics *diagnostics)
{
    const struct arena_config *settings = config;
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES], path[PATH_MAX];
    const char *reason;

    if (environment && environment->total_bytes &&
        settings->arena_size > environment->total_bytes) {
        rs_diagnose(diagnostics, source, NULL,
                    "the arena's size %s is larger than the device's memory of %s",
                    rs_size_format(settings->arena_size, first),
                    rs_size_format_short(environment->total_bytes, second));
        return false;
    }
    if (!dump_path(settings, environment, path, &reason)) {
        rs_diagnose(diagnostics, source, NULL, "path '%s': %s", settings->dump_path, reason);
        return false;
    }
    return true;
}

static const struct rs_option arena_options[] = {
    RS_OPTION_SIZE_ROW(struct arena_config, arena_size, "50%free",
                       "taken at the first allocation, in one piece where there is one; the arena "
                       "never holds more",
                       .minimum = RS_SUPERBLOCK_BYTES, .beyond_whole = true,
                       .maximum = (uint64_t)RS_SPAN_UNITS_MAX * RS_SPAN_UNIT),
    RS_OPTION_BOOLEAN_ROW(struct arena_config, size_classes, "0",
                          "rounds sizes up to four per doubling, for less fragmentation"),
    RS_OPTION_BOOLEAN_ROW(struct arena_config, dump_log_on_failure, "0",
                          "writes what the arena holds to dump_path when a request finds no room"),
    RS_OPTION_TEXT_ROW(struct arena_config, dump_path, "rmm_arena_memory_dump.log",
                       "file to write, with %p %h %e %t %r %q{VAR}"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_arena = {
    .name = "arena",
    .summary = "first fit in one upstream block of a fixed size, small requests from superblocks "
               "of each thread's own",
    .upstream_count = 1,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct arena_config),
    .options = arena_options,
    .validate = arena_validate,
    .create = arena_create,
};
