/* SPDX-License-Identifier: Apache-2.0 */
/* The public functions (include/rmmshim/rmmshim.h). */
#include "rmmshim/rmmshim.h"

#include "hook/caller.h"
#include "shim/control.h"

#include <assert.h>
#include <string.h>

static_assert((int)RMMSHIM_DEVICE_MEMORY == (int)RS_KIND_DEVICE &&
                  (int)RMMSHIM_PINNED_MEMORY == (int)RS_KIND_PINNED &&
                  (int)RMMSHIM_MANAGED_MEMORY == (int)RS_KIND_MANAGED,
              "the kinds are told apart by the same numbers inside");

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
    return rmmshim_get_statistics_of(device, RMMSHIM_DEVICE_MEMORY, statistics);
}

int rmmshim_get_statistics_of(int device, int kind, struct rmmshim_statistics *statistics)
{
    struct rs_control_statistics now;
    struct rmmshim_statistics filled;
    size_t bytes;
    int result;

    if (!statistics || statistics->size < 2 * sizeof(statistics->size))
        return rs_control_error(0, "statistics->size is not set");
    result = rs_control_statistics(device, kind, &now);
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
        .allocated_bytes = now.blocks.entered_bytes,
        .freed_bytes = now.blocks.left_bytes,
    };
    memcpy(statistics, &filled, bytes);
    return 0;
}

static int check_counters(const struct rmmshim_counters *counters)
{
    if (counters && counters->size >= 2 * sizeof(counters->size))
        return 0;
    return rs_control_error(0, "counters->size is not set");
}

static void fill_counters(struct rmmshim_counters *counters, const struct rs_count_level *level)
{
    struct rmmshim_counters filled = {
        .size = counters->size < sizeof(filled) ? counters->size : sizeof(filled),
        .used_bytes = level->live_bytes,
        .peak_used_bytes = level->peak_live_bytes,
        .allocated_bytes = level->entered_bytes,
        .used_blocks = level->live_blocks,
        .peak_used_blocks = level->peak_live_blocks,
        .allocations = level->entered_blocks,
    };

    memcpy(counters, &filled, (size_t)filled.size);
}

int rmmshim_get_counters(int device, int kind, struct rmmshim_counters *counters)
{
    struct rs_count_level level;
    int result = check_counters(counters);

    if (result == 0)
        result = rs_control_get_counters(device, kind, &level);
    if (result == 0)
        fill_counters(counters, &level);
    return result;
}

int rmmshim_push_counters(int device, int kind)
{
    return rs_control_push_counters(device, kind);
}

int rmmshim_pop_counters(int device, int kind, struct rmmshim_counters *counters)
{
    struct rs_count_level level;
    int result = counters ? check_counters(counters) : 0;

    if (result == 0)
        result = rs_control_pop_counters(device, kind, &level);
    if (result == 0 && counters)
        fill_counters(counters, &level);
    return result;
}

int rmmshim_reset_peaks(int device, int kind)
{
    return rs_control_reset_peaks(device, kind);
}

int rmmshim_push_phase(const char *name)
{
    return rs_control_push_phase(name);
}

int rmmshim_pop_phase(void)
{
    return rs_control_pop_phase();
}

static void fill_phase(struct rmmshim_phase *filled, const struct rs_phase *phase,
                       const struct rs_phase_memory *memory)
{
    *filled = (struct rmmshim_phase){
        .size = filled->size,
        .name = phase->name,
        .entries = phase->entries,
        .open = phase->open,
        .unended = phase->unended,
        .peak_bytes = memory->peak_bytes,
        .peak_used_bytes = memory->peak_live_bytes,
        .allocated_bytes = memory->entered_bytes,
        .allocations = memory->entered_blocks,
        .thread_peak_bytes = memory->thread_peak_bytes,
        .thread_allocated_bytes = memory->thread_entered_bytes,
        .thread_allocations = memory->thread_entered_blocks,
        .peak_charged_bytes = memory->peak_charged_bytes,
    };
}

int rmmshim_get_phase(int device, int kind, unsigned index, struct rmmshim_phase *phase)
{
    struct rmmshim_phase filled;
    struct rs_phase_memory memory;
    struct rs_phase found;
    int result;

    if (!phase || phase->size < 2 * sizeof(phase->size))
        return rs_control_error(0, "phase->size is not set");
    result = rs_control_get_phase(device, kind, index, &found, &memory);
    if (result != 0)
        return result;
    filled.size = phase->size < sizeof(filled) ? phase->size : sizeof(filled);
    fill_phase(&filled, &found, &memory);
    memcpy(phase, &filled, (size_t)filled.size);
    return 0;
}

int rmmshim_reset_phase_peaks(int device, int kind)
{
    return rs_control_reset_phase_peaks(device, kind);
}

size_t rmmshim_trim(int device, size_t keep_bytes)
{
    bool is_left;

    return rs_control_trim(device, keep_bytes, &is_left);
}

int rmmshim_set_limit(int device, size_t bytes)
{
    bool is_left;

    return rs_control_set_limit(device, bytes, &is_left);
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

int rmmshim_set_resource(int device, const char *expression)
{
    return rs_control_set_resource(device, expression);
}

int rmmshim_prefetch(const void *address, size_t bytes, int device, void *stream)
{
    return rs_control_prefetch((CUdeviceptr)(uintptr_t)address, bytes, device, stream);
}

int rmmshim_report(const char *where)
{
    return rs_control_report(where);
}

int rmmshim_mark(const char *phase)
{
    return rs_control_mark(phase);
}

void *rmmshim_torch_alloc(ssize_t size, int device, void *stream)
{
    return size > 0 ? rs_ordered_allocate((size_t)size, device, stream,
                                          rs_caller_object(__builtin_return_address(0)))
                    : NULL;
}

void rmmshim_torch_free(void *ptr, ssize_t size, int device, void *stream)
{
    (void)size; /* the block's record has it */
    if (ptr)
        rs_ordered_free(ptr, device, stream);
}

void rmmshim_torch_record_stream(void *ptr, void *stream)
{
    (void)stream;
    rs_ordered_note_other_streams(ptr);
}
