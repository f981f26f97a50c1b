/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of `pool`, for its own files alone.  pool.c is the resource: how it is made, and the
 * paths of an allocation and of a free.  What they work with:
 *
 *   pool_chunks.c   what upstream gave, and giving it back
 *   pool_policy.c   which block a request may take, and when more is held than should be
 *   pool_growth.c   more memory from upstream, and room for it
 *   pool_report.c   what a report says, and whether all of it is sound */
#pragma once

#include "base/counter.h"
#include "base/lock.h"
#include "heap/alignment.h"
#include "heap/blocks.h"
#include "resource/resource.h"

#include <pthread.h>

enum rs_pool_growth { RS_POOL_GROWTH_GEOMETRIC, RS_POOL_GROWTH_RMM };

/* One upstream allocation.  Its first block lives as long as it does, as merging keeps the lower
 * record, so that block's record is part of the chunk's. */
struct rs_pool_chunk {
    struct rs_block first_block;
    struct rs_pool_chunk *next, *previous;
    struct rs_allocation upstream;
    enum rs_block_group group;
    bool is_initial; /* stays when the pool is trimmed */
    bool is_away;    /* taken for small requests that would have pinned another */
};

/* Requests below RS_POOL_SMALL_BYTES and from RS_POOL_LARGE_BYTES on have chunks of their own; from
 * RS_POOL_HUGE_BYTES on each matters for what the device has room for. */
enum {
    RS_POOL_SMALL_BYTES = 1 << 20,
    RS_POOL_LARGE_BYTES = 32 << 20,
    RS_POOL_HUGE_BYTES = 256 << 20
};

struct rs_pool {
    struct rs_mr base;
    const struct rs_environment *environment;
    size_t initial_bytes, maximum_bytes;
    size_t alignment; /* of every block's address and rounded size */
    enum rs_pool_growth growth;
    bool parts_kinds; /* chunks are for one kind of size each */

    struct rs_mutex lock;   /* protects what follows; never held around an upstream call */
    pthread_cond_t settled; /* an upstream call ended: look again */
    struct rs_blocks blocks;
    struct rs_pool_chunk *chunks;
    size_t chunk_count;

    size_t charged_bytes;      /* against the maximum: held, being asked for, being given back */
    _Atomic size_t held_bytes; /* base/counter.h */
    size_t peak_held_bytes;
    size_t missing_bytes; /* of the initial size: given back, to be taken again with a growth */
    size_t away_bytes;    /* of chunks with is_away */
    size_t largest_bytes; /* of the requests served so far */

    bool is_misaligned;      /* upstream has given a chunk that is aligned less than the pool */
    bool is_growing_ahead;   /* a growth larger than its request is under way, ... */
    size_t ahead_bytes;      /* ... with this much for others who wait for it */
    unsigned upstream_calls; /* under way */
    size_t step_limit_bytes; /* growth no larger than this: larger was refused lately */
    uint64_t early_returns;  /* chunks given back in favour of others */
    uint64_t short_until;    /* this count of allocations, memory is short */
    uint64_t growths, chunk_returns, allocations, failures;
};

static inline struct rs_pool *rs_pool_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct rs_pool, base);
}

/* ---- chunks; all under the lock ---- */

/* Bytes at a chunk's beginning that no block may use, where the upstream aligns less than the pool.
 * A chunk that would be left with nothing stays as it is, and no request fits it. */
size_t rs_pool_skipped_bytes(const struct rs_pool *pool, const struct rs_pool_chunk *chunk);

void rs_pool_add_chunk(struct rs_pool *pool, struct rs_pool_chunk *chunk);

static inline bool rs_pool_is_free_chunk(const struct rs_pool_chunk *chunk)
{
    return chunk->first_block.is_free && rs_block_is_whole(&chunk->first_block);
}

/* Takes free chunks out of the pool, at most that many and all but keep_bytes of them, as a list.
 */
struct rs_pool_chunk *rs_pool_detach_free_chunks(struct rs_pool *pool, uint64_t most,
                                                 size_t keep_bytes, bool keep_initial);

/* Gives detached chunks back upstream.  The lock is held at entry and exit, not in between. Returns
 * the bytes that upstream took: it refuses what would have to wait inside a request. */
size_t rs_pool_return_chunks(struct rs_pool *pool, struct rs_pool_chunk *chunk);

/* Both in one. */
size_t rs_pool_return_free_chunks(struct rs_pool *pool, size_t keep_bytes, bool keep_initial);

/* A call that pool->upstream_calls counts is over. */
void rs_pool_end_upstream_call(struct rs_pool *pool);

/* ---- policy; all under the lock ---- */

/* Giving chunks back and taking others costs driver calls and converges only when the program's
 * sizes do.  So there are that many returns for a start, and few later. */
enum { RS_POOL_RETURNS = 512 };

/* How many chunks may be given back early now. */
uint64_t rs_pool_returns_left(const struct rs_pool *pool);

/* True when the pool would hold more than its allowance after a growth by the request. */
bool rs_pool_is_past_allowance(const struct rs_pool *pool, const struct rs_block_request *request);

/* False where upstream would be asked in vain. */
static inline bool rs_pool_can_grow(const struct rs_pool *pool,
                                    const struct rs_block_request *request)
{
    return request->rounded_bytes < pool->step_limit_bytes &&
           request->rounded_bytes <= pool->maximum_bytes - pool->charged_bytes;
}

static inline bool rs_pool_is_short(const struct rs_pool *pool)
{
    return pool->allocations < pool->short_until;
}

/* Such a size was refused.  What the program never had it may ask for to see whether it is there.
 */
void rs_pool_note_shortage(struct rs_pool *pool, size_t bytes);

/* What is small beside the initial size and the largest request so far. */
void rs_pool_set_apart_bytes(struct rs_pool *pool);

/* Rounded up to a multiple of the unit; `otherwise` when no size is that large. */
static inline size_t rs_pool_round_up_or(size_t bytes, size_t unit, size_t otherwise)
{
    size_t rounded;

    return rs_round_up(bytes, unit, &rounded) ? rounded : otherwise;
}

/* True when another chunk is better for a small request than to pin one that a large one could
 * have. */
bool rs_pool_stays_away(const struct rs_pool *pool, const struct rs_block_request *request);

/* Chunks that stay away from an initial size are at most this share of what is held. */
enum { RS_POOL_AWAY_DIVISOR = 16 };

/* Sets what a large request may cut. */
void rs_pool_limit_cuts(const struct rs_pool *pool, struct rs_block_request *request);

/* Sets what it may cut where memory is short. */
void rs_pool_limit_cuts_when_short(const struct rs_pool *pool, struct rs_block_request *request);

/* ---- growth; the lock is held at entry and exit, not in between ---- */

/* What a growth asks for: a step ahead of the request, the request in the driver's own unit, or the
 * request alone. */
enum rs_pool_how_much { RS_POOL_A_STEP, RS_POOL_A_LITTLE, RS_POOL_EXACTLY };

/* What upstream is asked for: a chunk of most_bytes, or of less down to least_bytes. */
struct rs_pool_ask {
    size_t most_bytes, least_bytes;
    enum rs_block_group group;
    bool is_initial;
    bool is_ahead; /* the pool can do without it: what is more than least_bytes it always can */
};

/* Charges for a chunk and asks for it. */
CUresult rs_pool_add_chunk_from_upstream(struct rs_pool *pool, const struct rs_pool_ask *ask);

/* Grows by at least the request; on success a block for it is in the index and the lock was not
 * released since.  again_bytes: were given back for it. */
CUresult rs_pool_grow(struct rs_pool *pool, const struct rs_block_request *request,
                      enum rs_pool_how_much how_much, enum rs_effort effort, size_t again_bytes);

/* Gives free chunks back although more is about to be taken.  Returns the bytes given back. */
size_t rs_pool_return_early(struct rs_pool *pool);

/* True when another thread's growth will leave room for this request and was waited for. */
bool rs_pool_waited_for_growth(struct rs_pool *pool, const struct rs_block_request *request);

/* After an out-of-memory: true when something changed or may have, so that another try is due. */
bool rs_pool_made_room(struct rs_pool *pool, const struct rs_block_request *request,
                       uint64_t returns_before);

/* ---- as in struct rs_mr_ops ---- */

void rs_pool_report(struct rs_mr *mr, struct rs_report *report);
bool rs_pool_check(struct rs_mr *mr);
