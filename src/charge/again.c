/* SPDX-License-Identifier: Apache-2.0 */
#include "charge/again.h"

#include "base/request.h"
#include "charge/reclaim.h"
#include "config/mode.h"
#include "context/limit.h"
#include "driver/driver.h"

/* The device that is meant, or a number below 0.  Host memory needs no context, and is the same for
 * every device. */
static int device_of(int device, enum rs_memory memory)
{
    if (device < 0 &&
        (!rs_driver.cuCtxGetDevice || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS))
        return memory == RS_MEMORY_HOST ? 0 : RS_AGAIN_CURRENT;
    return device;
}

static bool reclaim(CUresult result, int device, struct rs_refusal refusal, uint64_t *deadline_ns)
{
    bool again;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || !rs_mode_serving())
        return false;
    device = device_of(device, refusal.memory);
    if (device < 0)
        return false;
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

static CUresult count_refused(int device, enum rs_memory memory)
{
    if (!rs_mode_serving())
        return CUDA_ERROR_OUT_OF_MEMORY;
    device = device_of(device, memory);
    rs_limit_note_refused(device);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

RS_COLD CUresult rs_again_refused(int device)
{
    return count_refused(device, RS_MEMORY_DEVICE);
}

RS_COLD CUresult rs_again_refused_host(size_t size_bytes)
{
    (void)size_bytes;
    return count_refused(RS_AGAIN_CURRENT, RS_MEMORY_HOST);
}
