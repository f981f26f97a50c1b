/* SPDX-License-Identifier: Apache-2.0 */
/* Ready blocks that a shard keeps, in bins by size. */
#include "resource/reuse/kept_blocks.h"

static void empty_bin(struct rs_freed **bin, struct rs_freed_list *list)
{
    for (struct rs_freed *freed = *bin, *next; freed; freed = next) {
        next = freed->next;
        rs_freed_push(list, freed);
    }
    *bin = NULL;
}

void rs_kept_empty(struct rs_kept_blocks *kept, struct rs_freed_list *list)
{
    size_t bytes = list->bytes, count = list->count;

    for (unsigned i = 0; i < RS_ARRAY_LENGTH(kept->filled); i++) {
        for (uint64_t rest = kept->filled[i]; rest; rest &= rest - 1)
            empty_bin(&kept->bins[64 * i + (unsigned)__builtin_ctzll(rest)], list);
        kept->filled[i] = 0;
    }
    RS_ASSERT(list->bytes - bytes == kept->bytes && list->count - count == kept->count);
    (void)bytes;
    (void)count;
    kept->bytes = kept->count = 0;
}

bool rs_kept_check(const struct rs_kept_blocks *kept)
{
    size_t bytes = 0, count = 0;

    for (unsigned i = 0; i < RS_KEPT_BINS; i++) {
        for (const struct rs_freed *freed = kept->bins[i]; freed; freed = freed->next, count++) {
            bytes += freed->upstream.size_bytes;
            if (rs_kept_bin(freed->upstream.size_bytes) != i || freed->slot ||
                !(kept->filled[i / 64] & (uint64_t)1 << i % 64))
                return false;
        }
    }
    return bytes == kept->bytes && count == kept->count;
}
