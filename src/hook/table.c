/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "driver/driver.h"
#include "hook/hook.h"
#include "hook/runtime.h"

#define NEWEST     (1 << 30)
#define LEGACY     RS_STREAM_LEGACY
#define PER_THREAD RS_STREAM_PER_THREAD

/* Function pointers are kept as object pointers, as dlsym hands them out. */
#define ADDRESS(symbol) ((void *)(symbol))

#define HOOK(symbol, name, since, until, stream, group, summary)                                   \
    static void *real_##symbol(void)                                                               \
    {                                                                                              \
        return ADDRESS(rs_driver.symbol);                                                          \
    }
#include "driver/entry_points.def"

const struct rs_hook rs_hooks[] = {
#define HOOK(symbol, name, since, until, stream, group, summary)                                   \
    {#symbol, #name, since, until, stream, ADDRESS(symbol), real_##symbol},
#define RUNTIME(symbol, group, summary) {#symbol, NULL, 0, NEWEST, LEGACY, ADDRESS(symbol), NULL},
#include "driver/entry_points.def"
};

const unsigned rs_hook_count = RS_ARRAY_LENGTH(rs_hooks);
