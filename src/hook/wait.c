/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the program's waits for its work.  After a wait the driver's pools give back the free
 * memory that they hold above their release thresholds, and so do resources that have a threshold;
 * other processes of a job learn what is idle now.
 */
#include "charge/charge.h"
#include "charge/reclaim.h"
#include "config/mode.h"
#include "context/context.h"
#include "context/limit.h"
#include "context/visit.h"
#include "driver/fence.h"
#include "hook/hook.h"
#include "shim/commands.h"

static enum rs_synchronise begin_wait(enum rs_synchronise end)
{
    if (rs_mode_serving())
        rs_shim_attend_in_request();
    rs_context_synchronise(RS_SYNCHRONISE_BEGIN);
    return end;
}

static CUresult end_wait(enum rs_synchronise end, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        if (end == RS_SYNCHRONISE_END_ALL)
            rs_shim_waited_for_all();
        rs_context_synchronise(end);
        rs_charge_synchronised();
        if (RS_UNLIKELY(rs_limit_has_job))
            rs_job_look();
    } else if (rs_is_fault(result) && rs_mode_serving()) {
        (void)rs_context_fault_or(result); /* of another context, perhaps */
    }
    return result;
}

#define WAIT(symbol, parameters, arguments, end)                                                   \
    RS_HOOK_BETWEEN(symbol, parameters, arguments, begin_wait(RS_SYNCHRONISE_END_##end), end_wait)

WAIT(cuCtxSynchronize, (void), (), ALL)
WAIT(cuCtxSynchronize_v2, (CUcontext context), (context), ALL)
WAIT(cuStreamSynchronize, (CUstream stream), (stream), SOME)
WAIT(cuStreamSynchronize_ptsz, (CUstream stream), (stream), SOME)
WAIT(cuEventSynchronize, (CUevent event), (event), SOME)
