/* SPDX-License-Identifier: Apache-2.0 */
/* The record that `reuse` keeps of each block it handed out, and lists of freed blocks. */
#pragma once

#include "base/check.h"
#include "driver/cuda.h"
#include "heap/record_slab.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_freed_list;

/* The record of a live or freed block; it is the allocation's token.  It is taken at allocation, so
 * that a free needs no memory. */
struct rs_freed {
    struct rs_freed *next, *before; /* `before` and `in` are set in a list of ordered blocks only */
    struct rs_freed_list *in;
    struct {
        CUdeviceptr address;
        size_t size_bytes;
        void *token;
    } upstream;
    union {
        unsigned long long stream; /* of a live block: the stream it was allocated on, as from
                                      rs_stream_key; 0: unknown */
        void *holder;              /* of a freed block: its holder's record; NULL: none is kept */
    };
    uint32_t slot; /* of an ordered block: the index of its slot plus one; 0: it has no slot */
    uint16_t home; /* the shard whose slab it belongs to */
};

_Static_assert(sizeof(struct rs_freed) <= RS_RECORD_BYTES,
               "a freed block's record is a slab's record");

/* A list of freed blocks, with the sum of their sizes and their number. */
struct rs_freed_list {
    struct rs_freed *first, *last;
    size_t bytes, count;
};

/* Adds a block at the end. */
RS_HOT_INLINE void rs_freed_push(struct rs_freed_list *list, struct rs_freed *freed)
{
    RS_ASSERT_SLOW(freed->upstream.size_bytes > 0);
    RS_ASSERT_SLOW(!list->first == !list->last);
    freed->next = NULL;
    if (list->last)
        list->last->next = freed;
    else
        list->first = freed;
    list->last = freed;
    list->bytes += freed->upstream.size_bytes;
    list->count++;
}

/* Takes the first block of a list that is not empty. */
RS_HOT_INLINE struct rs_freed *rs_freed_pop(struct rs_freed_list *list)
{
    struct rs_freed *freed = list->first;

    RS_ASSERT_SLOW(freed && list->count > 0 && list->bytes >= freed->upstream.size_bytes);
    list->first = freed->next;
    if (RS_UNLIKELY(!list->first))
        list->last = NULL;
    list->bytes -= freed->upstream.size_bytes;
    list->count--;
    return freed;
}

/* Takes this block out.  False when the list does not have it.  Walks the list. */
static inline bool rs_freed_remove(struct rs_freed_list *list, struct rs_freed *freed)
{
    struct rs_freed **link = &list->first, *before = NULL;

    while (*link && *link != freed) {
        before = *link;
        link = &before->next;
    }
    if (!*link)
        return false;
    *link = freed->next;
    if (list->last == freed)
        list->last = before;
    list->bytes -= freed->upstream.size_bytes;
    list->count--;
    return true;
}

/* Moves all blocks of `tail` to the end of `list`, in constant time. */
RS_HOT_INLINE void rs_freed_append(struct rs_freed_list *list, struct rs_freed_list *tail)
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
    *tail = (struct rs_freed_list){NULL, NULL, 0, 0};
}
