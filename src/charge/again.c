/* SPDX-License-Identifier: Apache-2.0 */
#include "charge/again.h"

#include "base/request.h"
#include "charge/reclaim.h"
#include "config/mode.h"
#include "context/limit.h"
#include "driver/driver.h"

/* The device that is meant, or a number below 0.  Host memory needs no context, and is the same for
 * every device. */
static int device_of(int device, size_t host_bytes)
{
    if (device < 0 &&
        (!rs_driver.cuCtxGetDevice || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS))
        return host_bytes ? 0 : RS_AGAIN_CURRENT;
    return device;
}

bool rs_again(CUresult result, int device, size_t host_bytes, uint64_t *deadline_ns)
{
    struct rs_refusal refusal = {.size_bytes = host_bytes,
                                 .memory = host_bytes ? RS_MEMORY_HOST : RS_MEMORY_DEVICE};
    bool again;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || !rs_mode_serving())
        return false;
    device = device_of(device, host_bytes);
    if (device < 0)
        return false;
    refusal.releases = rs_account_releases(rs_limit_account(device));
    rs_request_begin_until(*deadline_ns);
    again = rs_reclaim(device, &refusal, true);
    *deadline_ns = rs_request_deadline_ns();
    rs_request_end();
    return again;
}

RS_COLD CUresult rs_again_refused(int device, size_t host_bytes)
{
    if (rs_mode_serving())
        rs_limit_note_refused(device_of(device, host_bytes));
    return CUDA_ERROR_OUT_OF_MEMORY;
}
