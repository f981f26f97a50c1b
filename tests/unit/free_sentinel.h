/* SPDX-License-Identifier: Apache-2.0 */
/* Gives back what rs_sentinel_wait keeps, so that a test can tell whether anything was lost; in a
 * program it goes with its context. */
#pragma once

#include "base/check.h"
#include "driver/capture.h"
#include "driver/driver.h"
#include "driver/fence.h"

static inline void free_sentinel(struct rs_sentinel *sentinel)
{
    CUdeviceptr blocks[] = {atomic_exchange(&sentinel->spare, 0),
                            atomic_exchange(&sentinel->anchor, 0)};
    CUstreamCaptureMode mode = rs_capture_relax();

    for (size_t i = 0; i < RS_ARRAY_LENGTH(blocks); i++)
        if (blocks[i])
            (void)rs_driver.cuMemFree_v2(blocks[i]);
    rs_capture_restore(mode);
}
