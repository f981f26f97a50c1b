/* SPDX-License-Identifier: Apache-2.0 */
/* Control from inside the process: what the public functions do (include/rmmshim/rmmshim.h tells
 * their errors).  All are thread safe and may be called in any process at any time. */
#pragma once

#include "context/block_counts.h"
#include "context/count_levels.h"
#include "driver/cuda.h"

#include <stddef.h>
#include <stdint.h>

/* Of one kind of memory; what counts against the limit is the whole device's. */
struct rs_control_statistics {
    struct rs_block_counts blocks;
    size_t held_bytes, peak_held_bytes, idle_bytes, free_blocks;
    size_t charged_bytes, limit_bytes;
    uint64_t refusals, driver_allocations, driver_frees;
};

/* The calling thread's last error in words. */
const char *rs_control_last_error(void);

/* Notes what is wrong with an argument; `line` NULL: nothing to say.  Returns result, or -EINVAL
 * for 0. */
int rs_control_error(int result, const char *line);

/* kind: an enum rs_kind, which is looked at. */
int rs_control_statistics(int device, int kind, struct rs_control_statistics *statistics);
int rs_control_get_counters(int device, int kind, struct rs_count_level *level);
int rs_control_push_counters(int device, int kind);
int rs_control_pop_counters(int device, int kind, struct rs_count_level *level);
int rs_control_reset_peaks(int device, int kind);

size_t rs_control_trim(int device, size_t keep_bytes);
int rs_control_set_limit(int device, size_t bytes);
int rs_control_set_limit_fraction(int device, double fraction);
int rs_control_get_limit(int device, size_t *bytes);
int rs_control_push(const char *expression);
int rs_control_pop(void);
int rs_control_set_resource(int device, const char *expression);
int rs_control_prefetch(CUdeviceptr address, size_t size_bytes, int device, CUstream stream);
int rs_control_report(const char *where);
int rs_control_mark(const char *phase);

/* Device memory of a device's primary context in the order of a stream, which is a CUstream with
 * NULL for the legacy one.  NULL when out of memory, after a line. */
void *rs_ordered_allocate(size_t size_bytes, int device, void *stream);
void rs_ordered_free(void *address, int device, void *stream);
void rs_ordered_note_other_streams(void *address);
