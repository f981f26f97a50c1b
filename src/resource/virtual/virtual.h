/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of `virtual`, for its own files alone.  virtual.c is the resource: how it is made,
 * trimmed and reported.  What it works with:
 *
 *   allocation.c   the way of an allocation
 *   blocks.c       blocks with memory and without, in their indexes
 *   move.c         memory on its way to other addresses
 *   growth.c       holes, and how a request gets memory mapped into one
 *   return.c       what goes back to the driver: at a trim, and with the context
 *   access.c       which other devices reach the memory
 *   check.c        whether all of it is sound
 *
 * What a call of the driver is about is busy: in no index, so that nobody else touches it and no
 * lock is held meanwhile. */
#pragma once

#include "base/counter.h"
#include "base/lock.h"
#include "heap/blocks.h"
#include "resource/resource.h"
#include "resource/unfinished.h"

#include <stdatomic.h>

/* A reservation.  Its first block lives as long as it does (blocks.h). */
struct rs_virtual_region {
    struct rs_block first_block;
    struct rs_virtual_region *next;
    CUdeviceptr base;
    size_t size_bytes;
    bool is_returned;                       /* its addresses are the driver's again */
    CUmemGenericAllocationHandle handles[]; /* of the granule mapped there; 0: none.  Those of busy
                                               blocks belong to whoever made them busy */
};

struct rs_virtual {
    struct rs_mr base;
    const struct rs_environment *environment;
    CUmemAllocationProp properties;
    size_t granule_bytes, reserve_bytes;
    size_t initial_granules, maximum_granules;

    struct rs_mutex lock;   /* protects what follows; never held around a driver call */
    pthread_cond_t settled; /* driver calls ended: look again */
    struct rs_blocks blocks;
    struct rs_block_index voids;
    _Atomic(struct rs_virtual_region *) regions; /* newest first; looked at without the lock too */
    CUmemGenericAllocationHandle *spares; /* granules mapped nowhere: of a move that failed */
    size_t spare_count, spare_room;       /* room for every granule there is */

    size_t charged_granules;      /* against the maximum: held and being asked for */
    _Atomic size_t held_granules; /* base/counter.h */
    size_t peak_held_granules;
    struct rs_block *stuck; /* busy: the driver would neither make them usable nor unmap them; by
                               .left */
    size_t stuck_bytes;     /* of those */

    unsigned calls;     /* under way */
    uint64_t begun;     /* such calls ever */
    size_t ahead_bytes; /* that a growth under way will leave for others who wait for it */
    bool is_still;      /* nothing is mapped or unmapped: access is being changed */
    bool is_reserved;   /* no growth begins but that of one thread, which needs all there is */
    bool ended;         /* with its context: nothing is served any more */
    bool released;
    struct rs_unfinished unfinished; /* of whoever released it: the driver did not take all */
    uint64_t driver_allocations, driver_frees, driver_refusals, moved_granules;
    uint64_t allocations, failures;
};

static inline struct rs_virtual *rs_virtual_of(struct rs_mr *mr)
{
    return RS_CONTAINER_OF(mr, struct rs_virtual, base);
}

/* Ends a turn with the lock.  When the context has ended, the last one whose driver calls were
 * under way releases what there is: nobody takes or moves memory any more. */
void rs_virtual_leave(struct rs_virtual *vm);

/* ---- blocks; all under the lock ---- */

/* Takes a void block out of its index. */
void rs_virtual_remove_void(struct rs_virtual *vm, struct rs_block *block);

/* Makes a block void that is in no index, merged with void neighbours. */
void rs_virtual_put_void(struct rs_virtual *vm, struct rs_block *block);

/* A busy block, which has memory, becomes free, or the other way round. */
void rs_virtual_put_free(struct rs_virtual *vm, struct rs_block *block);
void rs_virtual_take_free(struct rs_virtual *vm, struct rs_block *block);

/* Whose addresses they are.  Needs no lock. */
struct rs_virtual_region *rs_virtual_region_of(const struct rs_virtual *vm, CUdeviceptr address);

/* How far behind that address the request begins, in its region. */
size_t rs_virtual_lead_bytes(const struct rs_virtual *vm, CUdeviceptr address,
                             const struct rs_block_request *request);

/* Hands out of a free block.  Two records must be in reserve.  False when there is none. */
bool rs_virtual_take(struct rs_virtual *vm, const struct rs_block_request *request,
                     struct rs_allocation *out);

/* Held and not live.  Needs no lock. */
size_t rs_virtual_idle_bytes(const struct rs_virtual *vm);

/* ---- moves ---- */

/* Free memory on its way to other addresses, or back to the driver.  Its blocks are busy. */
struct rs_virtual_move {
    struct rs_block *low, *gap, *high; /* where it goes: gap gets memory, the others have it */
    struct rs_block *sources;          /* whose memory it is, linked by .left; ... */
    size_t unmapped_sources;           /* ... so many of them have lost it */
    size_t source_granules;
    size_t create_granules, created; /* to be asked for; got */
    void *records[2];                /* in reserve for the split behind a growth */
    CUmemGenericAllocationHandle *handles;
    size_t handle_count; /* granules mapped nowhere, that belong to this move */
    bool gap_is_stuck;
};

/* Makes free granules busy, those of the largest blocks first, until the move has `wanted` of them
 * or there are no more.  Under the lock. */
void rs_virtual_collect_sources(struct rs_virtual *vm, struct rs_virtual_move *move, size_t wanted);

/* The move's first handles are so many spares.  Under the lock. */
void rs_virtual_take_spares(struct rs_virtual *vm, struct rs_virtual_move *move, size_t count);

/* Unmaps the sources; their granules are the move's then.  CUDA_ERROR_NOT_READY when work may use
 * them yet, CUDA_ERROR_NOT_SUPPORTED when that cannot be known; both leave them.  Without the lock.
 */
CUresult rs_virtual_unmap_sources(struct rs_virtual *vm, struct rs_virtual_move *move);

/* All driver calls of a growth.  Without the lock. */
CUresult rs_virtual_move_memory(struct rs_virtual *vm, struct rs_virtual_move *move);

/* The end of a move, or of one that was never begun: every block gets a state again.  Under the
 * lock. */
void rs_virtual_settle(struct rs_virtual *vm, struct rs_virtual_move *move, bool has_moved);

/* Gives granules that are mapped nowhere back.  Those that the driver does not take stay, at the
 * beginning; returns how many those are.  The account that they are given back to may be NULL: it
 * has ended with its context.  Without the lock. */
size_t rs_virtual_release_granules(const struct rs_virtual *vm, struct rs_account *account,
                                   CUmemGenericAllocationHandle *handles, size_t count);

/* Tries again to unmap what is stuck; its granules are spares then.  Nobody changes access.  The
 * lock is held at entry and exit, not in between. */
void rs_virtual_loosen(struct rs_virtual *vm);

/* What vm->calls counts. */
void rs_virtual_begin_call(struct rs_virtual *vm);
void rs_virtual_end_call(struct rs_virtual *vm);

/* ---- growth and return; the lock is held at entry and exit, not in between ---- */

/* Reserves more addresses. */
CUresult rs_virtual_add_region(struct rs_virtual *vm, size_t least_bytes);

/* Where a growth takes its memory from. */
enum rs_virtual_means { RS_VIRTUAL_HELD, RS_VIRTUAL_HELD_AND_NEW, RS_VIRTUAL_NEW };

/* Makes a free block for the request; on success it is there.  CUDA_ERROR_NOT_READY when that would
 * need new memory by RS_VIRTUAL_HELD; and as rs_virtual_unmap_sources.  *disturbed: other threads'
 * calls had memory in hand meanwhile, so that a refusal may be for what they gave back since.
 * Nobody changes access. */
CUresult rs_virtual_grow(struct rs_virtual *vm, const struct rs_block_request *request,
                         enum rs_virtual_means means, bool *disturbed);

/* Gives back what is free but keep_bytes and the initial size; returns how many bytes. */
size_t rs_virtual_trim(struct rs_virtual *vm, size_t keep_bytes);

/* ---- without the lock ---- */

/* At the end, when nobody takes or moves memory any more.  What the driver does not take is tried
 * again later (unfinished.h). */
void rs_virtual_release_everything(struct rs_virtual *vm);

/* While nothing is mapped or unmapped: a peer comes or goes. */
CUresult rs_virtual_set_peer(struct rs_virtual *vm, CUdevice peer, bool allowed);

/* True when all invariants hold.  Under the lock. */
bool rs_virtual_check(const struct rs_virtual *vm);

/* ---- as in struct rs_mr_ops ---- */

/* Held memory serves also by a move of what is free: that costs as much as new memory, and takes
 * none. */
CUresult rs_virtual_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                             enum rs_effort effort, struct rs_allocation *out);
