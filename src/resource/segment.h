/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: the address ranges that our leaves took from the driver.
 *
 * An address inside a segment is ours whether or not a live block covers it, so it must never reach
 * a driver free: given the start of a segment, the driver would free the whole segment while blocks
 * in it are live. */
#pragma once

#include "driver/cuda.h"
#include "resource/resource.h"

#include <stdbool.h>

/* One driver allocation of a leaf. */
struct rs_segment {
    CUdeviceptr start;
    size_t size_bytes;
    const struct rs_environment *environment;
};

/* Enters or removes an allocation that a leaf took from the driver. rs_segment_add returns false
 * when out of host memory. is_lasting: the memory outlives its context, so that the driver gives it
 * to nobody else until the leaf gives it back. */
bool rs_segment_add(const struct rs_environment *environment, CUdeviceptr start, size_t size_bytes,
                    bool is_lasting);
void rs_segment_remove(const struct rs_environment *environment, CUdeviceptr start);

/* Finds the segment that contains the address.  Returns false, with *segment unchanged, when no
 * segment contains it, or its memory has ended with its context. */
bool rs_segment_find(CUdeviceptr address, struct rs_segment *segment);

/* Called when the context of `environment` has ended, and its memory with it: removes all segments
 * of the environment. */
void rs_segment_remove_all(const struct rs_environment *environment);
