/* SPDX-License-Identifier: Apache-2.0 */
/* The table of hooks: what we export, and in whose place. */
#pragma once

#include "driver/cuda.h"

enum rs_hook_stream { RS_STREAM_LEGACY, RS_STREAM_PER_THREAD };

/* Without a hook, where the driver answers its name with a function that we do not know. */
enum rs_hook_loss {
    RS_LOSS_NOTHING, /* the driver serves all the same, but is not asked again */
    RS_LOSS_SERVICE,
    RS_LOSS_LIMIT, /* device memory that a limit is about */
};

/* One row of driver/entry_points.def. */
struct rs_hook {
    const char *symbol; /* as exported */
    const char *name;   /* as cuGetProcAddress knows it; NULL for a function of the runtime */
    int since, until;   /* CUDA versions that give this symbol for that name */
    enum rs_hook_stream stream;
    enum rs_hook_loss loss;
    void *replacement;
    void *(*real)(void); /* the driver's exported function; NULL for a function of the runtime */
};

extern const struct rs_hook rs_hooks[];
extern const unsigned rs_hook_count;

/* A hook: exported under the driver's own name, reached inside by the static one, as a program that
 * defines the same name must not come between. */
#define RS_HOOK_DECLARE(symbol)                                                                    \
    static __typeof__(symbol) hook_##symbol;                                                       \
    extern __typeof__(symbol) symbol __attribute__((alias("hook_" #symbol), visibility("defaul"    \
                                                                                       "t")));

/* The driver's function of that type and name, or the answer of a machine without it: never a call
 * through NULL. */
#define RS_FORWARD(symbol, arguments)                                                              \
    (RS_LIKELY(rs_driver_ready(true) && rs_driver.symbol) ? rs_driver.symbol arguments             \
                                                          : rs_hook_missing())

/* No driver, or one that does not have the function. */
CUresult rs_hook_missing(void);
