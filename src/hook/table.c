/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "driver/driver.h"
#include "hook/hook.h"
#include "hook/runtime.h"

#include <string.h>

#define NEWEST     (1 << 30)
#define LEGACY     RS_STREAM_LEGACY
#define PER_THREAD RS_STREAM_PER_THREAD

/* clang-format off */
#define LOSS_lookup  RS_LOSS_SERVICE
#define LOSS_device  RS_LOSS_LIMIT
#define LOSS_managed RS_LOSS_LIMIT
#define LOSS_pinned  RS_LOSS_SERVICE
#define LOSS_async   RS_LOSS_LIMIT
#define LOSS_introspect RS_LOSS_SERVICE
#define LOSS_guard   RS_LOSS_SERVICE
#define LOSS_limit   RS_LOSS_LIMIT
#define LOSS_count   RS_LOSS_SERVICE
#define LOSS_capture RS_LOSS_SERVICE
#define LOSS_context RS_LOSS_SERVICE
#define LOSS_retry   RS_LOSS_NOTHING
#define LOSS_wait    RS_LOSS_NOTHING
/* clang-format on */

/* Function pointers are kept as object pointers, as dlsym hands them out. */
#define ADDRESS(symbol) ((void *)(symbol))

const struct rs_hook rs_hooks[] = {
#define HOOK(symbol, name, since, until, stream, group, summary)                                   \
    {#symbol, #name, since, until, stream, LOSS_##group, ADDRESS(symbol), &rs_driver.symbol},
#define NAME(symbol, name, since, until, stream, group)                                            \
    HOOK(symbol, name, since, until, stream, group, "")
#define RUNTIME(symbol, group, summary)                                                            \
    {#symbol, NULL, 0, NEWEST, LEGACY, RS_LOSS_SERVICE, ADDRESS(symbol), NULL},
#include "driver/entry_points.def"
};

const unsigned rs_hook_count = RS_ARRAY_LENGTH(rs_hooks);

void *rs_hook_real(const struct rs_hook *hook)
{
    void *real = NULL;

    if (hook->member)
        memcpy(&real, hook->member, sizeof(real));
    return real;
}

CUresult rs_hook_missing(void)
{
    return rs_driver_ready(true) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_NO_DEVICE;
}
