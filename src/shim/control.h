/* SPDX-License-Identifier: Apache-2.0 */
/* Control from inside the process: the functions behind the public ones, whose errors
 * include/rmmshim/rmmshim.h tells.  All are thread safe and may be called in any process at any
 * time. */
#pragma once

#include "context/block_counts.h"
#include "context/count_levels.h"
#include "context/phase.h"
#include "driver/cuda.h"

#include <stddef.h>
#include <stdint.h>

/* Counters of one kind of memory; charged_bytes, limit_bytes and refusals are the whole device's.
 */
struct rs_control_statistics {
    struct rs_block_counts blocks;
    size_t held_bytes, peak_held_bytes, idle_bytes, free_blocks;
    size_t charged_bytes, limit_bytes;
    uint64_t refusals, driver_allocations, driver_frees;
};

/* Of 200 bytes, since it lies in the static block of thread-local storage, which is small. */
enum { RS_CONTROL_ERROR_BYTES = 200 };

/* The calling thread's last error as a line of text. */
const char *rs_control_last_error(void);

/* Keeps `line` as the thread's last error (NULL: an empty line).  Returns result, or -EINVAL for 0.
 */
int rs_control_error(int result, const char *line);

/* kind: an enum rs_kind; other numbers are an error. */
int rs_control_statistics(int device, int kind, struct rs_control_statistics *statistics);
int rs_control_get_counters(int device, int kind, struct rs_count_level *level);
int rs_control_push_counters(int device, int kind);
int rs_control_pop_counters(int device, int kind, struct rs_count_level *level);
int rs_control_reset_peaks(int device, int kind);

int rs_control_push_phase(const char *name);
int rs_control_pop_phase(void);
/* A range of another interface, in a process in which it may be forwarded: nothing is answered. */
void rs_control_push_range(const char *name, const void *owner);
void rs_control_pop_range(const void *owner);
int rs_control_get_phase(int device, int kind, unsigned index, struct rs_phase *phase,
                         struct rs_phase_memory *memory);
int rs_control_reset_phase_peaks(int device, int kind);

/* *is_left: as rs_trim (charge/reclaim.h) sets it; false where nothing was trimmed. */
size_t rs_control_trim(int device, size_t keep_bytes, bool *is_left);
int rs_control_set_limit(int device, size_t bytes, bool *is_left);
int rs_control_set_limit_fraction(int device, double fraction);
int rs_control_get_limit(int device, size_t *bytes);
int rs_control_push(const char *expression);
int rs_control_pop(void);
int rs_control_set_resource(int device, const char *expression);
int rs_control_prefetch(CUdeviceptr address, size_t size_bytes, int device, CUstream stream);
int rs_control_report(const char *where);
int rs_control_mark(const char *phase);

/* Device memory of a device's primary context in the order of a stream, a CUstream (NULL: the
 * legacy default stream).  `object` asks (trace/object.h).  NULL when out of memory, after a line
 * in the log. */
void *rs_ordered_allocate(size_t size_bytes, int device, void *stream, unsigned object);
void rs_ordered_free(void *address, int device, void *stream);

/* Work of other streams uses the block: its free waits for all work of the context. */
void rs_ordered_note_other_streams(void *address);
