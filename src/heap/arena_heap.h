/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an arena, without its upstream: a global arena, and one for each thread.
 *
 * A request of 1 MiB or more is served by the global arena.  A smaller one is served by the arena
 * of the calling thread, out of superblocks of 1 MiB that it borrows from the global arena, so that
 * threads do not meet.  Both are first fit.
 *
 * RMM has arenas per thread and per stream, so that a block is used again only in the order of its
 * stream.  Blocks come here when no work uses them any more (reuse.c) and are good for
 * every stream, so only the threads are left.
 *
 * Thread safe.  Locks are taken in this order: a thread's arena, the global arena; never two of
 * either. */
#pragma once

#include "heap/span.h"

enum { RS_SUPERBLOCK_BYTES = 1 << 20 }; /* RMM's minimum superblock */

struct rs_arena_heap;

/* Memory from upstream, as the heap has it.  Private. */
struct rs_arena_range {
    struct rs_arena_range *next, *previous;
    struct rs_span *first;
};

/* NULL when out of host memory. */
struct rs_arena_heap *rs_arena_heap_create(void);

/* Threads may end before, at the same time and after. */
void rs_arena_heap_destroy(struct rs_arena_heap *heap);

/* Before rs_arena_heap_add, which then needs no host memory.  False when there is none. */
bool rs_arena_range_prepare(struct rs_arena_heap *heap, struct rs_arena_range *range);

/* Undoes that; also after rs_arena_heap_remove. */
void rs_arena_range_unprepare(struct rs_arena_heap *heap, struct rs_arena_range *range);

void rs_arena_heap_add(struct rs_arena_heap *heap, struct rs_arena_range *range,
                       CUdeviceptr address, size_t size_bytes);

/* Takes a range out if nothing of it is in use, ready to be added again.  Superblocks count as in
 * use: drain first. */
bool rs_arena_heap_remove(struct rs_arena_heap *heap, struct rs_arena_range *range);

/* A block for a request: `units` in size, at an alignment due to size_bytes where it can be had.
 * Looks everywhere before it gives up: RMM's defragmentation.  NULL when there is none, or no host
 * memory. */
struct rs_span *rs_arena_heap_take(struct rs_arena_heap *heap, size_t size_bytes, uint32_t units);

/* By any thread.  Needs no host memory. */
void rs_arena_heap_give(struct rs_arena_heap *heap, struct rs_span *block);

/* Gives every empty superblock back to the global arena.  Returns how many. */
size_t rs_arena_heap_drain(struct rs_arena_heap *heap);

/* Grows whenever memory went where a rs_arena_heap_take under way may have looked before: one that
 * failed while this changed is due another try. */
uint64_t rs_arena_heap_moves(struct rs_arena_heap *heap);

/* Memory in the heap that is not in use.  Takes no lock. */
size_t rs_arena_heap_free_bytes(struct rs_arena_heap *heap);

/* The spans that memory is in. */
size_t rs_arena_heap_free_spans(struct rs_arena_heap *heap);

struct rs_arena_heap_state {
    size_t held_bytes;
    size_t live_bytes;
    size_t lent_bytes, peak_lent_bytes; /* out of the global arena: large blocks, superblocks */
    size_t largest_free_bytes;          /* in the global arena */
    size_t superblocks, thread_arenas;
    uint64_t allocations, drains;
};

void rs_arena_heap_state(struct rs_arena_heap *heap, struct rs_arena_heap_state *state);

/* True when all invariants hold. */
bool rs_arena_heap_check(struct rs_arena_heap *heap);

/* Describes it, line by line, each with its newline. */
void rs_arena_heap_dump(struct rs_arena_heap *heap, void (*write)(void *data, const char *line),
                        void *data);
