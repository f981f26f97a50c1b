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
    CUdeviceptr anchor = atomic_exchange(&sentinel->anchor, 0), spare;
    CUstreamCaptureMode mode = rs_capture_relax();

    if (anchor)
        (void)rs_driver.cuMemFree_v2(anchor);
    for (size_t i = 0; i < RS_SENTINEL_SPARES; i++) {
        spare = atomic_exchange(&sentinel->spares[i], 0);
        if (spare)
            (void)rs_driver.cuMemFree_v2(spare);
    }
    rs_capture_restore(mode);
}
