/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of an arena, without its upstream: one global arena, and an arena per thread.
 *
 * The global arena serves a request of 1 MiB or more.  The arena of the calling thread serves a
 * smaller one out of superblocks of 1 MiB that it borrows from the global arena, so that threads
 * do not contend.  Both are first fit.
 *
 * RMM has an arena per thread and per stream, so that a block is reused only in the order of its
 * stream.  Here a block is deallocated when no work uses it any more (resource/reuse) and may
 * serve any stream, so arenas per thread suffice.
 *
 * Thread safe.  Locks are taken in this order: a thread's arena, then the global arena; never
 * two locks of the same kind. */
#pragma once

#include "heap/span.h"

enum { RS_SUPERBLOCK_BYTES = 1 << 20 }; /* 1 MiB, RMM's smallest superblock */

struct rs_arena_heap;

/* A range of upstream memory in the heap.  Its owner allocates the struct; the fields are
 * private. */
struct rs_arena_range {
    struct rs_arena_range *next, *previous;
    struct rs_span *first;
};

/* Returns an empty heap, or NULL when out of host memory. */
struct rs_arena_heap *rs_arena_heap_create(void);

/* Destroys the heap.  Threads that used it may end before, during or after this call. */
void rs_arena_heap_destroy(struct rs_arena_heap *heap);

/* Prepares a range: rs_arena_heap_add then needs no host memory.  Returns false when out of host
 * memory. */
bool rs_arena_range_prepare(struct rs_arena_heap *heap, struct rs_arena_range *range);

/* Undoes rs_arena_range_prepare; also called after rs_arena_heap_remove. */
void rs_arena_range_unprepare(struct rs_arena_heap *heap, struct rs_arena_range *range);

/* Adds upstream memory as a prepared range.  size_bytes is a multiple of 512, at most 1 TiB. */
void rs_arena_heap_add(struct rs_arena_heap *heap, struct rs_arena_range *range,
                       CUdeviceptr address, size_t size_bytes);

/* Removes a range if none of it is in use; it can be added again.  Returns false otherwise.  A
 * superblock counts as in use, so call rs_arena_heap_drain first. */
bool rs_arena_heap_remove(struct rs_arena_heap *heap, struct rs_arena_range *range);

/* Takes a block of `units` * 512 bytes for a request of size_bytes, with the alignment of such a
 * request where possible (heap/alignment.h).  A small request looks in the thread's arena, the
 * global arena and all other arenas before it gives up; a large one first returns all empty
 * superblocks to the global arena (RMM's defragmentation finds the same room).  Returns NULL when
 * there is none, or when out of host memory. */
struct rs_span *rs_arena_heap_take(struct rs_arena_heap *heap, size_t size_bytes, uint32_t units);

/* Gives a block back; any thread may.  Needs no host memory. */
void rs_arena_heap_give(struct rs_arena_heap *heap, struct rs_span *block);

/* Returns every empty superblock to the global arena.  Returns the number of superblocks. */
size_t rs_arena_heap_drain(struct rs_arena_heap *heap);

/* Returns a number that grows whenever memory moves to a place where an rs_arena_heap_take under
 * way may already have looked.  A take that failed while the number changed deserves another
 * attempt. */
uint64_t rs_arena_heap_moves(struct rs_arena_heap *heap);

/* Returns the bytes in the heap that are not in use.  Takes no lock. */
size_t rs_arena_heap_free_bytes(struct rs_arena_heap *heap);

/* Returns the number of free spans in all arenas. */
size_t rs_arena_heap_free_spans(struct rs_arena_heap *heap);

struct rs_arena_heap_state {
    size_t held_bytes;                  /* of all ranges */
    size_t live_bytes;                  /* of blocks */
    size_t lent_bytes, peak_lent_bytes; /* out of the global arena: its blocks, superblocks */
    size_t largest_free_bytes;          /* in the global arena */
    size_t superblocks, thread_arenas;  /* lent now; arenas of live threads */
    uint64_t allocations, drains;       /* that succeeded; that returned a superblock */
};

/* Stores the heap's counters.  At exit its locks are taken bounded (base/lock.h); the part behind a
 * lock that was skipped stays 0. */
void rs_arena_heap_state(struct rs_arena_heap *heap, struct rs_arena_heap_state *state);

/* Checks all invariants, under the heap's locks.  Returns true when they hold. */
bool rs_arena_heap_check(struct rs_arena_heap *heap);

/* Describes every span and superblock for people: calls `write` for each line, with its newline,
 * while a lock of the heap is held. */
void rs_arena_heap_dump(struct rs_arena_heap *heap, void (*write)(void *data, const char *line),
                        void *data);
