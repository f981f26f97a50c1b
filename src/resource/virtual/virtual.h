/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of `virtual`, for its own files alone. virtual.c is the resource: how it is made,
 * trimmed, checked and reported. allocation.c has the path of an allocation: it finds a free block,
 * or a hole of addresses that needs memory. move.c moves memory to other addresses, or back to the
 * driver.
 *
 * A block that a driver call works on is busy: it is in no index, so that no other thread touches
 * it, and no lock is held during the call. */
#pragma once

#include "resource/ranges.h"
#include "resource/resource.h"

#include <stdatomic.h>

/* One reservation of addresses.  Its first block lives as long as the region (ranges.h). */
struct rs_virtual_region {
    struct rs_block first_block;
    struct rs_virtual_region *next;
    CUdeviceptr base;
    size_t size_bytes;
    bool is_returned; /* the region's addresses went back to the driver */
    /* The granule mapped at each place; 0: none. The handles of a busy block belong to the thread
     * that made it busy. */
    CUmemGenericAllocationHandle handles[];
};

struct rs_virtual {
    struct rs_mr base;
    CUmemAllocationProp properties;
    size_t granule_bytes, reserve_bytes;
    size_t initial_granules, maximum_granules;

    /* The fields below are protected by the lock, which is never held around a driver call. */
    /* Signalled when driver calls have ended, for threads that wait to look again. */
    pthread_cond_t settled;
    struct rs_blocks blocks;
    struct rs_block_index voids;
    _Atomic(struct rs_virtual_region *) regions; /* newest first; also read without the lock */
    /* Granules without an address, left over from a move that failed. */
    CUmemGenericAllocationHandle *spares;
    /* `spare_room` is the length of `spares`, which has room for every granule. */
    size_t spare_count, spare_room;

    size_t charged_granules; /* granules counted against the maximum: held or being asked for */
    _Atomic size_t held_granules; /* written under the lock, also read without it (base/lock.h) */
    size_t peak_held_granules;
    struct rs_block *stuck; /* busy blocks, linked by .left, that the driver would neither map and
                               make accessible as a whole, nor unmap */
    size_t stuck_bytes;     /* the bytes of those blocks */

    unsigned calls;     /* the number of threads inside driver calls that take or move memory */
    uint64_t begun;     /* the number of such calls ever begun */
    size_t ahead_bytes; /* bytes that a growth under way will leave to other requests that wait for
                           it */
    bool is_still;      /* peer access is being changed, so no thread may map or unmap */
    bool is_reserved;   /* one thread needs all free memory, so no other may begin a growth */
    bool ended;         /* the context has ended: no request is served any more */
    bool released;
    uint64_t driver_allocations, driver_frees, driver_refusals, moved_granules;
    uint64_t allocations, failures;
};

/* Releases the lock.  When the context has ended, the last thread whose driver calls were under way
 * then releases all memory, as no thread takes or moves memory any more. */
void rs_virtual_leave(struct rs_virtual *vm);

/* ---- blocks; all under the lock ---- */

/* Makes a block that is in no index void, merged with void neighbours. */
void rs_virtual_put_void(struct rs_virtual *vm, struct rs_block *block);

/* rs_virtual_put_free makes a busy block with memory free; rs_virtual_take_free makes a free block
 * busy. */
void rs_virtual_put_free(struct rs_virtual *vm, struct rs_block *block);
void rs_virtual_take_free(struct rs_virtual *vm, struct rs_block *block);

/* Returns the region that contains the address.  Needs no lock. */
struct rs_virtual_region *rs_virtual_region_of(const struct rs_virtual *vm, CUdeviceptr address);

/* Returns the bytes that are held and not live.  Needs no lock. */
size_t rs_virtual_idle_bytes(const struct rs_virtual *vm);

/* ---- moves ---- */

/* Free memory on its way to other addresses, or back to the driver.  All its blocks are busy. */
struct rs_virtual_move {
    struct rs_block *low, *gap, *high; /* the destination: `gap` gets memory, its neighbours `low`
                                          and `high` have it already */
    struct rs_block *sources;          /* the blocks whose memory moves, linked by .left */
    size_t unmapped_sources;           /* the number of sources that are unmapped already */
    size_t source_granules;
    size_t create_granules, created; /* new granules to ask the driver for, and those it gave */
    CUmemGenericAllocationHandle *handles;
    size_t handle_count; /* the number of granules without an address that belong to this move */
    bool gap_is_stuck;
};

/* Makes the whole granules of free blocks busy, largest blocks first, until the move has `wanted`
 * granules or no more are free.  The caller holds the lock. */
void rs_virtual_collect_sources(struct rs_virtual *vm, struct rs_virtual_move *move, size_t wanted);

/* Takes `count` spares as the first handles of the move.  The caller holds the lock. */
void rs_virtual_take_spares(struct rs_virtual *vm, struct rs_virtual_move *move, size_t count);

/* Makes all driver calls of a growth.  Called without the lock. */
CUresult rs_virtual_move_memory(struct rs_virtual *vm, struct rs_virtual_move *move);

/* Ends a move, also one that was never begun: each of its blocks becomes free, void or stuck, and
 * granules without an address become spares. has_moved: the gap has got its memory.  The caller
 * holds the lock. */
void rs_virtual_settle(struct rs_virtual *vm, struct rs_virtual_move *move, bool has_moved);

/* Tries again to unmap the stuck blocks; their granules become spares.  Does nothing while a thread
 * changes peer access.  Called and left with the lock held, which is released in between. */
void rs_virtual_loosen(struct rs_virtual *vm);

/* Called around driver calls that take or move memory (vm->calls).  The first releases the lock and
 * sets relaxed capture mode; the second undoes both. */
CUstreamCaptureMode rs_virtual_begin_calls(struct rs_virtual *vm);
void rs_virtual_end_calls(struct rs_virtual *vm, CUstreamCaptureMode mode);

/* ---- growth and return; called and left with the lock held, which is released in between ---- */

/* Reserves another region of at least least_bytes addresses. */
CUresult rs_virtual_add_region(struct rs_virtual *vm, size_t least_bytes);

/* The memory that a growth may use beside spares: free granules, new ones from the driver, or
 * both. */
enum rs_virtual_means { RS_VIRTUAL_HELD, RS_VIRTUAL_HELD_AND_NEW, RS_VIRTUAL_NEW };

/* Makes a free block for the request.  CUDA_ERROR_NOT_READY when RS_VIRTUAL_HELD does not suffice;
 * CUDA_ERROR_OUT_OF_MEMORY at the maximum, at the limit, or out of host memory;
 * CUDA_ERROR_CONTEXT_IS_DESTROYED when the context has ended; otherwise the errors of unmap_sources
 * (move.c) and of the driver.  *disturbed: whether other threads were taking or moving memory
 * meanwhile, so that a refusal may be stale.  The caller makes sure that no thread changes peer
 * access. */
CUresult rs_virtual_grow(struct rs_virtual *vm, const struct rs_block_request *request,
                         enum rs_virtual_means means, bool *disturbed);

/* Gives free memory back to the driver, except for keep_bytes and the initial size.  Returns the
 * bytes given back. */
size_t rs_virtual_trim(struct rs_virtual *vm, size_t keep_bytes);

/* ---- without the lock ---- */

/* Releases all memory and addresses, once no thread takes or moves memory any more.  For memory
 * that the driver does not take back now, rs_virtual_finish, the `finish` op, tries again later; it
 * returns true when none is left. */
void rs_virtual_release_everything(struct rs_virtual *vm);
bool rs_virtual_finish(struct rs_mr *mr);

/* ---- ops of struct rs_mr_ops ---- */

/* The allocate op.  With RS_EFFORT_HELD it may still move free memory: that takes as long as
 * getting new memory, but takes none from the driver. */
CUresult rs_virtual_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                             enum rs_effort effort, struct rs_allocation *out);
