/* SPDX-License-Identifier: Apache-2.0 */
#include "shim/again.h"

#include "driver/driver.h"
#include "shim/life.h"
#include "shim/limit.h"

bool rs_again(CUresult result, int device)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !rs_life_serving())
        return false;
    if (device < 0 &&
        (!rs_driver.cuCtxGetDevice || rs_driver.cuCtxGetDevice(&device) != CUDA_SUCCESS))
        return false;
    return rs_limit_reclaim(device) > 0;
}
