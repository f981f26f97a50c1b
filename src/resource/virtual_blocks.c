/* SPDX-License-Identifier: Apache-2.0 */
/* The range is cut into blocks without gaps: with memory, handed out or free (blocks.h), or void,
 * which is addresses without memory. */
#include "resource/virtual.h"

void rs_virtual_remove_void(struct rs_virtual *vm, struct rs_block *block)
{
    RS_ASSERT(block->is_void);
    rs_block_index_remove(&vm->voids, block);
    block->is_void = false;
}

void rs_virtual_put_void(struct rs_virtual *vm, struct rs_block *block)
{
    struct rs_block *after = block->after, *before = block->before;

    block->is_busy = false;
    if (after && after->is_void) {
        rs_virtual_remove_void(vm, after);
        rs_blocks_merge(&vm->blocks, block, after);
    }
    if (before && before->is_void) {
        rs_virtual_remove_void(vm, before);
        rs_blocks_merge(&vm->blocks, before, block);
        block = before;
    }
    block->is_void = true;
    rs_block_index_insert(&vm->voids, block);
}

void rs_virtual_put_free(struct rs_virtual *vm, struct rs_block *block)
{
    block->is_busy = false;
    rs_blocks_put(&vm->blocks, block);
}

void rs_virtual_take_free(struct rs_virtual *vm, struct rs_block *block)
{
    rs_blocks_remove_free(&vm->blocks, block);
    block->is_busy = true;
}

/* As rs_counter_idle: live is read first. */
size_t rs_virtual_idle_bytes(const struct rs_virtual *vm)
{
    size_t live_bytes = rs_counter_get(&vm->blocks.live_bytes);
    size_t held_bytes = rs_counter_get(&vm->held_granules) * vm->granule_bytes;

    return held_bytes > live_bytes ? held_bytes - live_bytes : 0;
}
