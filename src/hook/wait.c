/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the program's waits for its work, after which the driver's pools give back what they
 * have above their release thresholds: forwarded, with ours beside them. */
#include "charge/charge.h"
#include "context/visit.h"
#include "driver/driver.h"
#include "hook/hook.h"
#include "shim/commands.h"

/* clang-format off */
#define HOOK_wait RS_HOOK_DECLARE
#define HOOK_lookup(symbol) /* the others: cuda.c, async.c, capture.c, limit.c, again.c */
#define HOOK_device(symbol)
#define HOOK_managed(symbol)
#define HOOK_pinned(symbol)
#define HOOK_introspect(symbol)
#define HOOK_guard(symbol)
#define HOOK_capture(symbol)
#define HOOK_context(symbol)
#define HOOK_async(symbol)
#define HOOK_limit(symbol)
#define HOOK_count(symbol)
#define HOOK_retry(symbol)
/* clang-format on */
#define HOOK(symbol, name, since, until, stream, group, summary) HOOK_##group(symbol)
#include "driver/entry_points.def"

/* As the whole of a hook. */
#define FORWARD(end, symbol, arguments)                                                            \
    do {                                                                                           \
        CUresult answer;                                                                           \
        rs_shim_attend();                                                                          \
        rs_context_synchronise(RS_SYNCHRONISE_BEGIN);                                              \
        answer = RS_FORWARD(symbol, arguments);                                                    \
        if (answer == CUDA_SUCCESS) {                                                              \
            rs_context_synchronise(RS_SYNCHRONISE_END_##end);                                      \
            rs_charge_synchronised();                                                              \
        }                                                                                          \
        return answer;                                                                             \
    } while (0)

static CUresult hook_cuCtxSynchronize(void)
{
    FORWARD(ALL, cuCtxSynchronize, ());
}

static CUresult hook_cuCtxSynchronize_v2(CUcontext context)
{
    FORWARD(ALL, cuCtxSynchronize_v2, (context));
}

static CUresult hook_cuStreamSynchronize(CUstream stream)
{
    FORWARD(SOME, cuStreamSynchronize, (stream));
}

static CUresult hook_cuStreamSynchronize_ptsz(CUstream stream)
{
    FORWARD(SOME, cuStreamSynchronize_ptsz, (stream));
}

static CUresult hook_cuEventSynchronize(CUevent event)
{
    FORWARD(SOME, cuEventSynchronize, (event));
}
