/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/kept_blocks.h"

enum { KEPT_LOOK = 4 };

static unsigned kept_bin(size_t size_bytes)
{
    return (unsigned)(size_bytes * 0x9e3779b97f4a7c15u >> (64 - RS_KEPT_BIN_BITS));
}

struct rs_freed *rs_kept_take(struct rs_kept_blocks *kept, size_t size_bytes)
{
    struct rs_freed **at = &kept->bins[kept_bin(size_bytes)], *found;

    for (unsigned i = 0; i < KEPT_LOOK && *at; i++, at = &(*at)->next) {
        if ((*at)->upstream.size_bytes != size_bytes)
            continue;
        found = *at;
        *at = found->next;
        kept->bytes -= size_bytes;
        kept->count--;
        return found;
    }
    return NULL;
}

void rs_kept_put(struct rs_kept_blocks *kept, struct rs_freed *freed)
{
    struct rs_freed **bin = &kept->bins[kept_bin(freed->upstream.size_bytes)];

    freed->next = *bin;
    *bin = freed;
    kept->bytes += freed->upstream.size_bytes;
    kept->count++;
}

void rs_kept_empty(struct rs_kept_blocks *kept, struct rs_freed_list *list)
{
    for (unsigned i = 0; i < RS_KEPT_BINS && kept->count > 0; i++) {
        for (struct rs_freed *freed = kept->bins[i], *next; freed; freed = next) {
            next = freed->next;
            rs_freed_push(list, freed);
            kept->count--;
        }
        kept->bins[i] = NULL;
    }
    kept->bytes = 0;
}

bool rs_kept_check(const struct rs_kept_blocks *kept)
{
    size_t bytes = 0, count = 0;

    for (unsigned i = 0; i < RS_KEPT_BINS; i++) {
        for (const struct rs_freed *freed = kept->bins[i]; freed; freed = freed->next, count++) {
            bytes += freed->upstream.size_bytes;
            if (kept_bin(freed->upstream.size_bytes) != i || freed->slot)
                return false;
        }
    }
    return bytes == kept->bytes && count == kept->count;
}
