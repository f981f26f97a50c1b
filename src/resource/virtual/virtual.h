/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of `virtual`, for its own files alone.  virtual.c is the resource: how it is made,
 * trimmed, checked and reported.  allocation.c has the path of an allocation.  move.c moves memory
 * to other addresses, or back to the driver.
 *
 * Words: a *granule* is a piece of physical memory, the unit in which memory is taken and mapped.
 * A *void* block is addresses without memory.  A *busy* block is one on which a driver call works:
 * it is in no index, so that no other thread touches it while no lock is held. */
#pragma once

#include "resource/ranges.h"
#include "resource/resource.h"

#include <stdatomic.h>

/* One range of reserved addresses.  Its first block lives as long as the region (ranges.h). */
struct rs_virtual_region {
    struct rs_block first_block;
    struct rs_virtual_region *next;
    CUdeviceptr base;
    size_t size_bytes;
    bool is_returned; /* the region's addresses went back to the driver */
    /* The granule that is mapped at each granule's place in the region; 0: none.  The handles of a
     * busy block belong to the thread that made the block busy. */
    CUmemGenericAllocationHandle handles[];
};

struct rs_virtual {
    struct rs_mr base;
    CUmemAllocationProp properties;
    size_t granule_bytes, reserve_bytes;
    size_t initial_granules, maximum_granules;

    /* The fields below are protected by the lock, which is never held around a driver call. */
    /* Signalled when a thread's driver calls have ended, or is_still or is_reserved was unset. */
    pthread_cond_t settled;
    struct rs_blocks blocks;
    struct rs_block_index voids;                 /* the void blocks */
    _Atomic(struct rs_virtual_region *) regions; /* newest first; also read without the lock */
    /* Spares: granules without an address, mostly left over from a move that failed. */
    CUmemGenericAllocationHandle *spares;
    /* spare_room: the length of `spares`, which has room for every granule. */
    size_t spare_count, spare_room;

    size_t charged_granules; /* granules counted against the maximum: held or being asked for */
    _Atomic size_t held_granules; /* written under the lock, also read without it (base/lock.h) */
    size_t peak_held_granules;
    struct rs_block *stuck; /* stuck blocks, linked by .left: busy blocks that a failed move left
                               mapped at least in part, and that the driver refused to unmap */
    size_t stuck_bytes;     /* the bytes of those blocks */

    unsigned calls;     /* the number of threads inside driver calls that take or move memory */
    uint64_t begun;     /* how often a thread has begun such calls */
    size_t ahead_bytes; /* bytes of a growth under way that its own request does not need, and that
                           no waiting request counts on yet */
    bool is_still;      /* peer access is being changed, so no thread may map or unmap */
    bool is_reserved;   /* one thread needs all free memory, so no other may begin a growth */
    bool ended;         /* the context has ended: no request is served any more */
    bool released;      /* rs_virtual_release_everything was called, or is about to be */
    uint64_t driver_allocations, driver_frees, driver_refusals, moved_granules;
    uint64_t allocations, failures;
};

/* Releases the lock.  If the context has ended and no driver calls are under way any more, the
 * first thread to come here then gives all memory back. */
void rs_virtual_leave(struct rs_virtual *vm);

/* ---- blocks; the caller holds the lock ---- */

/* Makes a block void that is in no index, and merges it with void neighbours. */
void rs_virtual_put_void(struct rs_virtual *vm, struct rs_block *block);

/* rs_virtual_put_free makes a block free that has memory and is in no index (a busy one, or the
 * rest of one that was cut), and merges it with free neighbours.  rs_virtual_take_free makes a free
 * block busy. */
void rs_virtual_put_free(struct rs_virtual *vm, struct rs_block *block);
void rs_virtual_take_free(struct rs_virtual *vm, struct rs_block *block);

/* Returns the region that contains the address.  Needs no lock. */
struct rs_virtual_region *rs_virtual_region_of(const struct rs_virtual *vm, CUdeviceptr address);

/* Returns the held bytes less the live bytes.  Needs no lock. */
size_t rs_virtual_idle_bytes(const struct rs_virtual *vm);

/* ---- moves ---- */

/* A move takes granules from free blocks (`sources`), and maps them at other addresses (`gap`) or
 * gives them back to the driver.  All blocks named here are busy: no other thread uses them. */
struct rs_virtual_move {
    struct rs_block *low, *gap, *high; /* the destination: `gap` is addresses that get memory; `low`
                                          and `high`, if not NULL, are its neighbours with memory */
    struct rs_block *sources;          /* the blocks whose memory moves, linked by .left */
    size_t unmapped_sources;           /* the number of sources that are unmapped already */
    size_t source_granules;
    size_t create_granules, created; /* new granules to ask the driver for, and those it gave */
    /* The granules of this move that have no address at the moment. */
    CUmemGenericAllocationHandle *handles;
    size_t handle_count;
    bool gap_is_stuck; /* the gap is to be a stuck block */
};

/* Collects sources for the move: makes whole granules of free blocks busy, largest blocks first,
 * until the move has `wanted` granules or no more are free.  The caller holds the lock. */
void rs_virtual_collect_sources(struct rs_virtual *vm, struct rs_virtual_move *move, size_t wanted);

/* Takes `count` spares as the first handles of the move.  The caller holds the lock. */
void rs_virtual_take_spares(struct rs_virtual *vm, struct rs_virtual_move *move, size_t count);

/* Makes the driver calls of a growth: creates granules, unmaps the sources, maps the gap.  Called
 * without the lock. */
CUresult rs_virtual_move_memory(struct rs_virtual *vm, struct rs_virtual_move *move);

/* Ends a move, even if none of its driver calls was made.  Its blocks become free, void or stuck,
 * and its granules without an address become spares.  has_moved: the gap has got its memory.  The
 * caller holds the lock. */
void rs_virtual_settle(struct rs_virtual *vm, struct rs_virtual_move *move, bool has_moved);

/* Tries again to unmap the stuck blocks, so that their granules become spares.  Does nothing while
 * is_still.  The caller holds the lock, which is released in between. */
void rs_virtual_loosen(struct rs_virtual *vm);

/* Called around driver calls that take or move memory, and count them (vm->calls).  The first
 * function releases the lock and sets relaxed capture mode; the second undoes both. */
CUstreamCaptureMode rs_virtual_begin_calls(struct rs_virtual *vm);
void rs_virtual_end_calls(struct rs_virtual *vm, CUstreamCaptureMode mode);

/* ---- growth and trims; the caller holds the lock, which is released in between ---- */

/* Reserves another region of at least least_bytes addresses. */
CUresult rs_virtual_add_region(struct rs_virtual *vm, size_t least_bytes);

/* The memory that a growth may use beside spares: free granules (held), new ones from the driver,
 * or both. */
enum rs_virtual_means { RS_VIRTUAL_HELD, RS_VIRTUAL_HELD_AND_NEW, RS_VIRTUAL_NEW };

/* Makes a free block for the request.  Returns CUDA_ERROR_NOT_READY when RS_VIRTUAL_HELD does not
 * suffice; CUDA_ERROR_OUT_OF_MEMORY at the maximum, at the limit, or out of host memory;
 * CUDA_ERROR_CONTEXT_IS_DESTROYED when the context has ended; or an error of unmap_sources (move.c)
 * or of the driver.  *disturbed: other threads were taking or moving memory meanwhile, so another
 * try may succeed.  Must not be called while is_still. */
CUresult rs_virtual_grow(struct rs_virtual *vm, const struct rs_block_request *request,
                         enum rs_virtual_means means, bool *disturbed);

/* Gives free memory back to the driver, except for keep_bytes and (keep_initial) the initial size.
 * Returns the bytes given back. */
size_t rs_virtual_trim(struct rs_virtual *vm, size_t keep_bytes, bool keep_initial);

/* ---- without the lock ---- */

/* Gives all memory and addresses back to the driver.  Called when no thread takes or moves memory
 * any more.  If the driver refuses some of it, rs_virtual_finish, the `finish` op, tries again
 * later. */
void rs_virtual_release_everything(struct rs_virtual *vm);
bool rs_virtual_finish(struct rs_mr *mr);

/* ---- ops of struct rs_mr_ops ---- */

/* The allocate op.  Even with RS_EFFORT_HELD it may move free memory to other addresses.  That
 * takes as long as a driver allocation, but takes no memory from the driver. */
CUresult rs_virtual_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                             enum rs_effort effort, struct rs_allocation *out);
