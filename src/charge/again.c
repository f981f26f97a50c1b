/* SPDX-License-Identifier: Apache-2.0 */
#include "charge/again.h"

#include "base/request.h"
#include "charge/reclaim.h"
#include "config/mode.h"
#include "context/limit.h"
#include "driver/driver.h"

bool rs_again(CUresult result, int device, uint64_t *deadline_ns)
{
    bool may_wait = device != RS_AGAIN_CURRENT_AT_ONCE, again;

    if (result != CUDA_ERROR_OUT_OF_MEMORY || !rs_mode_serving())
        return false;
    if (device < 0 &&
        (!rs_driver.cuCtxGetDevice || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS))
        return false;
    struct rs_refusal refusal = {.releases = rs_account_releases(rs_limit_account(device))};

    rs_request_begin_until(*deadline_ns);
    again = rs_reclaim(device, &refusal, may_wait);
    *deadline_ns = rs_request_deadline_ns();
    rs_request_end();
    return again;
}
