/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"
#include "driver/driver.h"
#include "hook/hook.h"
#include "hook/runtime.h"

#define NEWEST     (1 << 30)
#define LEGACY     RS_STREAM_LEGACY
#define PER_THREAD RS_STREAM_PER_THREAD

/* clang-format off */
#define ALLOCATES_lookup  false
#define ALLOCATES_device  true
#define ALLOCATES_managed true
#define ALLOCATES_pinned  false
#define ALLOCATES_async   true
#define ALLOCATES_observe false
#define ALLOCATES_guard   false
#define ALLOCATES_limit   true
#define ALLOCATES_count   false
#define ALLOCATES_capture false
#define ALLOCATES_context false
/* clang-format on */

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
    {#symbol, #name, since, until, stream, ALLOCATES_##group, ADDRESS(symbol), real_##symbol},
#define RUNTIME(symbol, group, summary)                                                            \
    {#symbol, NULL, 0, NEWEST, LEGACY, false, ADDRESS(symbol), NULL},
#include "driver/entry_points.def"
};

const unsigned rs_hook_count = RS_ARRAY_LENGTH(rs_hooks);
