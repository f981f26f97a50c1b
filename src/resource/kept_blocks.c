/* SPDX-License-Identifier: Apache-2.0 */
#include "resource/kept_blocks.h"

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
            if (rs_kept_bin(freed->upstream.size_bytes) != i || freed->slot)
                return false;
        }
    }
    return bytes == kept->bytes && count == kept->count;
}
