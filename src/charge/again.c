/* SPDX-License-Identifier: Apache-2.0 */
#include "charge/again.h"

#include "base/request.h"
#include "charge/reclaim.h"
#include "config/mode.h"
#include "context/limit.h"
#include "driver/driver.h"

static bool reclaim(CUresult result, int device, struct rs_refusal refusal, uint64_t *deadline_ns)
{
    bool again;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || !rs_mode_serving())
        return false;
    if (device < 0 &&
        (!rs_driver.cuCtxGetDevice || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)) {
        if (refusal.memory != RS_MEMORY_HOST)
            return false;
        device = 0; /* host memory needs no context, and is the same for every device */
    }
    refusal.releases = rs_account_releases(rs_limit_account(device));
    rs_request_begin_until(*deadline_ns);
    again = rs_reclaim(device, &refusal, true);
    *deadline_ns = rs_request_deadline_ns();
    rs_request_end();
    return again;
}

bool rs_again(CUresult result, int device, uint64_t *deadline_ns)
{
    return reclaim(result, device, (struct rs_refusal){.size_bytes = 0}, deadline_ns);
}

bool rs_again_host(CUresult result, size_t size_bytes, uint64_t *deadline_ns)
{
    const struct rs_refusal refusal = {.size_bytes = size_bytes, .memory = RS_MEMORY_HOST};

    return reclaim(result, RS_AGAIN_CURRENT, refusal, deadline_ns);
}
