/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions (include/rmmshim/rmmshim.h). */
#include "rmmshim/rmmshim.h"

#include "shim/control.h"

#include <string.h>

const char *rmmshim_version(void)
{
    return RMMSHIM_VERSION;
}

const char *rmmshim_last_error(void)
{
    return rs_control_last_error();
}

int rmmshim_get_statistics(int device, struct rmmshim_statistics *statistics)
{
    struct rs_control_statistics now;
    struct rmmshim_statistics filled;
    size_t bytes;
    int result;

    if (!statistics || statistics->size < 2 * sizeof(statistics->size))
        return rs_control_error(0, "statistics->size is not set");
    result = rs_control_statistics(device, &now);
    if (result != 0)
        return result;
    bytes = statistics->size < sizeof(filled) ? (size_t)statistics->size : sizeof(filled);
    filled = (struct rmmshim_statistics){
        .size = bytes,
        .used_bytes = now.blocks.live_bytes,
        .peak_used_bytes = now.blocks.peak_live_bytes,
        .used_blocks = now.blocks.live_blocks,
        .peak_used_blocks = now.blocks.peak_live_blocks,
        .allocations = now.blocks.entered,
        .frees = now.blocks.left,
        .total_bytes = now.held_bytes,
        .peak_total_bytes = now.peak_held_bytes,
        .free_bytes = now.idle_bytes,
        .free_blocks = now.free_blocks,
        .charged_bytes = now.charged_bytes,
        .limit_bytes = now.limit_bytes,
        .refusals = now.refusals,
        .driver_allocations = now.driver_allocations,
        .driver_frees = now.driver_frees,
    };
    memcpy(statistics, &filled, bytes);
    return 0;
}

size_t rmmshim_trim(int device, size_t keep_bytes)
{
    return rs_control_trim(device, keep_bytes);
}

int rmmshim_set_limit(int device, size_t bytes)
{
    return rs_control_set_limit(device, bytes);
}

int rmmshim_set_limit_fraction(int device, double fraction)
{
    return rs_control_set_limit_fraction(device, fraction);
}

int rmmshim_get_limit(int device, size_t *bytes)
{
    return rs_control_get_limit(device, bytes);
}

int rmmshim_push_resource(const char *expression)
{
    return rs_control_push(expression);
}

int rmmshim_pop_resource(void)
{
    return rs_control_pop();
}

int rmmshim_mark(const char *phase)
{
    return rs_control_mark(phase);
}

void *rmmshim_torch_alloc(ssize_t size, int device, void *stream)
{
    return size > 0 ? rs_ordered_allocate((size_t)size, device, stream) : NULL;
}

void rmmshim_torch_free(void *ptr, ssize_t size, int device, void *stream)
{
    (void)size; /* the block knows its own */
    if (ptr)
        rs_ordered_free(ptr, device, stream);
}

void rmmshim_torch_record_stream(void *ptr, void *stream)
{
    (void)stream;
    rs_ordered_note_other_streams(ptr);
}
