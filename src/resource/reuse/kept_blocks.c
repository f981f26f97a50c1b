/* SPDX-License-Identifier: Apache-2.0 */
/* Ready blocks that a shard keeps, in bins by size. */
#include "resource/reuse/kept_blocks.h"

static void empty_bin(struct rs_block_record **bin, struct rs_block_list *list)
{
    for (struct rs_block_record *freed = *bin, *next; freed; freed = next) {
        next = freed->next;
        rs_block_list_push(list, freed);
    }
    *bin = NULL;
}

void rs_kept_empty(struct rs_kept_blocks *kept, enum rs_kept_class class,
                   struct rs_block_list *list)
{
    size_t bytes = list->bytes, count = list->count;

    for (uint64_t rest = kept->filled[class]; rest; rest &= rest - 1)
        empty_bin(&kept->bins[class * RS_KEPT_BINS + (unsigned)__builtin_ctzll(rest)], list);
    kept->filled[class] = 0;
    RS_ASSERT(list->bytes - bytes == kept->bytes[class]);
    RS_ASSERT(list->count - count == kept->count[class]);
    (void)bytes;
    (void)count;
    kept->bytes[class] = kept->count[class] = 0;
}

static bool check_class(const struct rs_kept_blocks *kept, enum rs_kept_class class)
{
    size_t bytes = 0, count = 0;

    for (unsigned i = 0; i < RS_KEPT_BINS; i++) {
        unsigned bin = class * RS_KEPT_BINS + i;
        for (const struct rs_block_record *freed = kept->bins[bin]; freed;
             freed = freed->next, count++) {
            bytes += freed->upstream_bytes;
            if (rs_kept_bin(freed->upstream_bytes, class) != bin || freed->slot ||
                !(kept->filled[class] & (uint64_t)1 << i))
                return false;
        }
    }
    return bytes == kept->bytes[class] && count == kept->count[class];
}

bool rs_kept_check(const struct rs_kept_blocks *kept)
{
    return check_class(kept, RS_KEPT_SMALL) && check_class(kept, RS_KEPT_LARGE);
}
