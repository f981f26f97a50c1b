/* SPDX-License-Identifier: Apache-2.0 */
/* Frees the blocks that rs_sentinel_wait keeps, so that a test can tell whether anything leaked; in
 * a program they go with their context. */
#pragma once

#include "base/check.h"
#include "driver/capture.h"
#include "driver/driver.h"
#include "driver/fence.h"

static inline void free_sentinel(struct rs_sentinel *sentinel)
{
    CUstreamCaptureMode mode = rs_capture_relax();

    for (size_t i = 0; i < RS_SENTINEL_BLOCKS; i++) {
        CUdeviceptr block = atomic_exchange(&sentinel->blocks[i], 0);
        if (block)
            (void)rs_driver.cuMemFree_v2(block);
    }
    rs_capture_restore(mode);
}
