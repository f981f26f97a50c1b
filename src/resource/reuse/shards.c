/* SPDX-License-Identifier: Apache-2.0 */
/* Shards: each serves some of the threads. */
#include "resource/reuse/reuse.h"

unsigned rs_reuse_use_shard(struct rs_reuse *reuse)
{
    unsigned index = rs_thread_index() % RS_REUSE_SHARDS;
    unsigned used = atomic_load(&reuse->shards_used);

    while (used <= index && !atomic_compare_exchange_weak(&reuse->shards_used, &used, index + 1))
        ;
    RS_ASSERT(index < rs_reuse_shards_used(reuse));
    return index;
}
