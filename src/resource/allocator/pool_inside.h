/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of `pool`, for its own files alone.  pool.c is the resource: how it is made, and the
 * paths of an allocation and of a free; pool_growth.c has its chunks: which a request may cut, when
 * the pool holds too much, and how chunks come and go. */
#pragma once

#include "base/lock.h"
#include "resource/ranges.h"
#include "resource/resource.h"

#include <pthread.h>

enum rs_pool_growth { RS_POOL_GROWTH_GEOMETRIC, RS_POOL_GROWTH_RMM };

/* One upstream allocation.  The record of its first block is a part of the chunk's: merging keeps
 * the lower record, so that block lives as long as the chunk. */
struct rs_pool_chunk {
    struct rs_block first_block;
    struct rs_pool_chunk *next, *previous;
    struct rs_allocation upstream;
    enum rs_block_group group;
    bool is_initial; /* a part of the initial size; given back only by a trim that takes initial
                        sizes, or when a request would fail otherwise */
    bool is_away;    /* a chunk for small requests only, so that they do not pin others
                        (rs_pool_stays_away) */
};

/* With parts_kinds, requests below RS_POOL_SMALL_BYTES, and those from RS_POOL_LARGE_BYTES on, have
 * chunks of their own.  From RS_POOL_HUGE_BYTES on, each single block matters for how much fits on
 * the device. */
enum {
    RS_POOL_SMALL_BYTES = 1 << 20,
    RS_POOL_LARGE_BYTES = 32 << 20,
    RS_POOL_HUGE_BYTES = 256 << 20
};

struct rs_pool {
    struct rs_mr base;
    size_t initial_bytes, maximum_bytes;
    size_t alignment; /* every block's address and rounded size are multiples of this */
    enum rs_pool_growth growth;
    bool parts_kinds; /* a chunk taken on demand serves requests of one size group only */

    /* The fields below are protected by the lock. */
    pthread_cond_t settled; /* signalled when an upstream call has ended, for threads that wait to
                               look again */
    struct rs_blocks blocks;
    struct rs_pool_chunk *chunks;
    size_t chunk_count;

    size_t charged_bytes;      /* bytes counted against the maximum: held, being asked for, or being
                                  given back */
    _Atomic size_t held_bytes; /* written under the lock, also read without it (base/lock.h) */
    size_t peak_held_bytes;
    size_t missing_bytes; /* the part of the initial size that was given back and is to be taken
                             again with a growth */
    size_t away_bytes;    /* the bytes of the chunks with is_away */
    size_t largest_bytes; /* the rounded size of the largest request served so far */

    bool is_misaligned;      /* upstream gave a chunk whose alignment is below the pool's */
    bool is_growing_ahead;   /* a growth larger than its request is under way ... */
    size_t ahead_bytes;      /* ... which will leave this much to other requests that wait for it */
    unsigned upstream_calls; /* the number of upstream calls under way */
    size_t step_limit_bytes; /* the most bytes of a growth step, since upstream has lately refused
                                more; SIZE_MAX: no limit */
    uint64_t early_returns;  /* chunks given back so that others could be taken */
    uint64_t short_until;    /* memory counts as short until `allocations` reaches this number */
    uint64_t growths, chunk_returns, allocations, failures;
};

/* ---- chunks; all under the lock ---- */

/* Returns the bytes at a chunk's beginning that no block may use, since upstream aligns less
 * strictly than the pool.  Returns 0 if no bytes would be left; no request fits such a chunk
 * anyway. */
size_t rs_pool_skipped_bytes(const struct rs_pool *pool, const struct rs_pool_chunk *chunk);

static inline bool rs_pool_is_free_chunk(const struct rs_pool_chunk *chunk)
{
    return chunk->first_block.is_free && rs_block_is_whole(&chunk->first_block);
}

/* Gives free chunks back upstream, except for keep_bytes of them and (keep_initial) the initial
 * size.  Called and left with the lock held, but releases it in between.  Returns the bytes that
 * upstream took; upstream refuses a chunk whose free would have to wait inside a request. */
size_t rs_pool_return_free_chunks(struct rs_pool *pool, size_t keep_bytes, bool keep_initial);

/* ---- policy; all under the lock ---- */

/* True when the pool would hold more than its allowance after a growth by the request; never with
 * growth=rmm. */
bool rs_pool_is_past_allowance(const struct rs_pool *pool, const struct rs_block_request *request);

/* False when a growth would exceed the maximum, or when upstream lately refused this size. */
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

/* Computes blocks.apart_bytes from the initial size and the largest request so far.  A request of
 * fewer bytes counts as small. */
void rs_pool_set_apart_bytes(struct rs_pool *pool);

/* True when a small request should get a chunk of its own kind (is_away), and not a block in a
 * chunk that a large request could use.  With an initial size, such chunks together may be at most
 * a share of the held bytes (RS_POOL_AWAY_DIVISOR).  Without one, the pool must stay within its
 * allowance. */
bool rs_pool_stays_away(const struct rs_pool *pool, const struct rs_block_request *request);

/* Limits the sizes of the free blocks that a large request may cut (request->most_bytes and
 * ample_bytes). */
void rs_pool_limit_cuts(const struct rs_pool *pool, struct rs_block_request *request);

/* Limits the sizes of the free blocks that a request may cut while memory is short. */
void rs_pool_limit_cuts_when_short(const struct rs_pool *pool, struct rs_block_request *request);

/* ---- growth; called and left with the lock held, which is released in between ---- */

/* What a growth asks for: the pool's growth step, which is usually more than the request needs; the
 * request rounded up to the driver's 2 MiB unit; or the request alone. */
enum rs_pool_how_much { RS_POOL_A_STEP, RS_POOL_A_LITTLE, RS_POOL_EXACTLY };

/* The chunk that upstream is asked for: most_bytes, or less down to least_bytes. */
struct rs_pool_ask {
    size_t most_bytes, least_bytes;
    enum rs_block_group group;
    bool is_initial, is_away; /* as in the chunk */
    bool is_ahead; /* the pool does not need the chunk; the bytes past least_bytes it never needs */
};

/* Charges a chunk against the maximum and asks upstream for it.  On success the chunk is in the
 * pool as one free block; else returns upstream's error, or CUDA_ERROR_OUT_OF_MEMORY without host
 * memory. */
CUresult rs_pool_add_chunk_from_upstream(struct rs_pool *pool, const struct rs_pool_ask *ask);

/* Grows by at least the request.  On success the new chunk is in the index as one free block, and
 * the lock was held without a break since it was entered there.  The block may be too misaligned
 * for the request. */
CUresult rs_pool_grow(struct rs_pool *pool, const struct rs_block_request *request,
                      enum rs_pool_how_much how_much, enum rs_effort effort);

/* Gives free chunks back just before a growth.  Returns true when upstream took some.  Does so only
 * where upstream can free without waiting for the GPU, which may itself wait for this thread.  An
 * attempt for which upstream took nothing counts as one return, so that attempts in a busy context
 * come to an end. */
bool rs_pool_returned_early(struct rs_pool *pool);

/* Waits for another thread's growth, 20 ms at most, if that growth will leave room for this
 * request.  True when it waited. */
bool rs_pool_waited_for_growth(struct rs_pool *pool, const struct rs_block_request *request);

/* Called after CUDA_ERROR_OUT_OF_MEMORY: gives free chunks back, or, if none could be, waits for
 * another thread's upstream call, 0.5 s at most.  Returns true when another attempt may succeed:
 * after either, or when chunks were given back since chunk_returns was returns_before.  The initial
 * size is given back only if the request may fit then. */
bool rs_pool_made_room(struct rs_pool *pool, const struct rs_block_request *request,
                       uint64_t returns_before);
