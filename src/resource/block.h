/* SPDX-License-Identifier: Apache-2.0 */
/* An allocation, as resources, contexts and hooks pass it on, and the record of its block.
 *
 * A block has the same record from its allocation until its memory is upstream again: while the
 * program has the block (context/block.h), while it waits in quarantine for GPU work to end, and
 * while it is kept for the next request (resource/reuse).
 *
 * A record has one owner at a time: the program while the block is live, then the thread that frees
 * the block, then the list in which the block is.  Only the owner gives the record back.  Records
 * are recycled and never unmapped, since a look-up in another thread may still read a record that
 * has been recycled.  The look-up then compares the block's address to find that out. */
#pragma once

#include "base/address_map.h"
#include "base/check.h"
#include "base/lock.h"
#include "driver/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    /* The alignment of every block, in bytes; the driver's blocks have it too (MEASURED.md). */
    RS_BLOCK_ALIGNMENT = 512,
    RS_DRIVER_GRANULARITY = 2 << 20, /* the driver's unit for large allocations, 2 MiB */
};

struct rs_block_record;
struct rs_stack;

/* What a resource returns for a request.  The caller keeps address, size and token, and deallocates
 * with the same values. */
struct rs_allocation {
    CUdeviceptr address;
    size_t size_bytes; /* as requested, not as rounded */
    /* Private to the resource that made the allocation: its own record of the block, so that
     * deallocation needs no search.  Adaptors without such a record pass it through. */
    void *token;
    /* The block's record if a resource made one, else NULL.  An adaptor that changes neither
     * address nor size passes it through in both directions. */
    struct rs_block_record *block;
};

/* ---- the record ---- */

enum rs_block_state {
    RS_BLOCK_HIDDEN, /* not in the map of blocks (rs_blocks) */
    RS_BLOCK_LIVE,
    RS_BLOCK_TAKEN, /* freed; stays in the map, since the block may soon be allocated again */
};

/* Has two cache lines.  Any thread may read the atomic fields.  Only the owner writes a field, with
 * two exceptions: calls of the program about a live block also change `history` and
 * `device_accesses`. */
struct rs_block_record {
    /* The next block in the list that the block is in. */
    _Alignas(2 * RS_CACHE_LINE) struct rs_block_record *next;
    _Atomic unsigned char state; /* enum rs_block_state */
    unsigned char home; /* used by `reuse`: the number of the shard to which the block comes back */
    _Atomic uint16_t object; /* the number of the shared object that allocated the block
                                (trace/object.h); 0: not known */
    union {
        struct {
            _Atomic bool has_other_streams;
            _Atomic unsigned char advised; /* RS_ADVISED_... */
            _Atomic uint16_t exported;     /* RS_EXPORTED_... */
        };
        /* The three fields above as one, so that one store sets them to 0 for a new block. */
        _Atomic uint32_t history;
    };
    _Atomic CUdeviceptr address;
    size_t size_bytes; /* as requested */
    void *token;       /* the token of the allocation for the topmost resource of the stack */
    _Atomic(struct rs_stack *) stack;

    /* The size and token of the upstream allocation, for the resource that made the record; 0 bytes
     * if no resource made it. */
    size_t upstream_bytes;
    void *upstream_token;

    _Atomic uint64_t device_accesses; /* bit i: device i was advised as an accessor */
    _Atomic uint64_t id;              /* 0: rs_block_id has not been called */
    bool is_ordered;    /* used by `reuse`: the freed block is in a slot for its stream (struct
                           rs_ordered_blocks), in no list */
    unsigned char slab; /* the number of the slab to which the record belongs */
    /* Of a live block: the number (rs_stream_key) of the stream on which it was allocated; 0: not
     * known. */
    unsigned long long stream;
};

_Static_assert(sizeof(struct rs_block_record) == (size_t)2 * RS_CACHE_LINE,
               "see rs_block_record_prefetch");

/* Maps addresses to block records; NULL before the first block. */
extern RS_HOT_DATA _Atomic(struct rs_address_map *) rs_blocks;

/* Takes a record, in the state RS_BLOCK_HIDDEN.  Returns NULL when out of host memory. */
struct rs_block_record *rs_block_record_take(void);

/* Takes the block out of the map, if it is there: look-ups no longer find it. */
void rs_block_hide(struct rs_block_record *block);

/* Hides the block, and gives its record back. */
void rs_block_record_give(struct rs_block_record *block);

/* Prefetches the record's second cache line for the next allocation of this block. */
RS_HOT_INLINE void rs_block_record_prefetch(const struct rs_block_record *block)
{
    __builtin_prefetch(&block->device_accesses, 1);
}

/* A list of blocks, with the sum of their upstream sizes and their number. */
struct rs_block_list {
    struct rs_block_record *first, *last;
    size_t bytes, count;
};

/* Adds a block at the end. */
RS_HOT_INLINE void rs_block_list_push(struct rs_block_list *list, struct rs_block_record *block)
{
    RS_ASSERT_SLOW(block->upstream_bytes > 0);
    RS_ASSERT_SLOW(!list->first == !list->last);
    block->next = NULL;
    if (list->last)
        list->last->next = block;
    else
        list->first = block;
    list->last = block;
    list->bytes += block->upstream_bytes;
    list->count++;
}

/* Takes and returns the first block of the list, which must not be empty. */
RS_HOT_INLINE struct rs_block_record *rs_block_list_pop(struct rs_block_list *list)
{
    struct rs_block_record *block = list->first;

    RS_ASSERT_SLOW(block && list->count > 0 && list->bytes >= block->upstream_bytes);
    list->first = block->next;
    if (RS_UNLIKELY(!list->first))
        list->last = NULL;
    list->bytes -= block->upstream_bytes;
    list->count--;
    return block;
}

/* Removes this block from the list, which it walks to find the block.  Returns false when the block
 * is not in the list. */
static inline bool rs_block_list_remove(struct rs_block_list *list, struct rs_block_record *block)
{
    struct rs_block_record **link = &list->first, *before = NULL;

    while (*link && *link != block) {
        before = *link;
        link = &before->next;
    }
    if (!*link)
        return false;
    *link = block->next;
    if (list->last == block)
        list->last = before;
    list->bytes -= block->upstream_bytes;
    list->count--;
    return true;
}

/* Moves all blocks of `tail` to the end of `list`, in constant time. */
RS_HOT_INLINE void rs_block_list_append(struct rs_block_list *list, struct rs_block_list *tail)
{
    if (!tail->first)
        return;
    RS_ASSERT_SLOW(list != tail && tail->last && tail->count > 0);
    if (list->last)
        list->last->next = tail->first;
    else
        list->first = tail->first;
    list->last = tail->last;
    list->bytes += tail->bytes;
    list->count += tail->count;
    *tail = (struct rs_block_list){NULL, NULL, 0, 0};
}
