/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: the address ranges that our leaves took from the driver.
 *
 * No address in a segment may be passed to the driver's free, even if no live block contains it:
 * given the start of a segment, the driver would free all of the segment, with the live blocks in
 * it. */
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

/* Enters, or removes, memory that a leaf took from the driver.  is_lasting: the memory outlives its
 * context; only the leaf gives it back.  rs_segment_add returns false when out of host memory. */
bool rs_segment_add(const struct rs_environment *environment, CUdeviceptr start, size_t size_bytes,
                    bool is_lasting);
void rs_segment_remove(const struct rs_environment *environment, CUdeviceptr start);

/* Finds the segment that contains the address.  Returns false, with *segment unchanged, when there
 * is none, and for a segment whose memory has ended with its context. */
bool rs_segment_find(CUdeviceptr address, struct rs_segment *segment);

/* Removes all segments of the environment.  Called when its context has ended. */
void rs_segment_remove_all(const struct rs_environment *environment);
