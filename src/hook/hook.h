/* SPDX-License-Identifier: Apache-2.0 */
/* The table of hooks: the functions that the library exports, and the functions they stand for. */
#pragma once

#include "driver/cuda.h"

/* The default stream that NULL means to the function. */
enum rs_hook_stream {
    RS_STREAM_LEGACY,     /* the legacy default stream */
    RS_STREAM_PER_THREAD, /* the calling thread's default stream */
};

/* What is lost when the driver answers a hook's name with a function that the library does not
 * know. */
enum rs_hook_loss {
    RS_LOSS_NOTHING, /* the driver serves the call; after a failure it is not asked again */
    RS_LOSS_SERVICE, /* the call is neither served nor corrected */
    RS_LOSS_LIMIT,   /* the call takes device memory that no limit counts */
};

/* One row of driver/entry_points.def. */
struct rs_hook {
    const char *symbol; /* as exported */
    const char *name;   /* for cuGetProcAddress; NULL for a function of the runtime */
    int since, until;   /* the first CUDA version that gives the symbol for the name, and the first
                         * that no longer does */
    enum rs_hook_stream stream;
    enum rs_hook_loss loss;
    void *replacement;
    const void *member; /* its place in rs_driver; NULL for a function of the runtime */
};

extern const struct rs_hook rs_hooks[];
extern const unsigned rs_hook_count;

/* The driver's exported function, NULL when the driver does not have it, and for a function of the
 * runtime.  Valid once the driver is ready. */
void *rs_hook_real(const struct rs_hook *hook);

/* Declares a hook: a static function that is exported under the driver's own name.  The library
 * calls the static one, since a program may define the same name.  Files of hooks use it through
 * hook/groups.h. */
#define RS_HOOK_DECLARE(symbol)                                                                    \
    static __typeof__(symbol) hook_##symbol;                                                       \
    extern __typeof__(symbol) symbol RS_HOOK_EXPORT("hook_" #symbol);
#define RS_HOOK_EXPORT(function) __attribute__((alias(function), visibility("default")))

/* The result of the driver's function, or rs_hook_missing() when there is none. */
#define RS_FORWARD(symbol, arguments)                                                              \
    (RS_LIKELY(rs_driver_ready(true) && rs_driver.symbol) ? rs_driver.symbol arguments             \
                                                          : rs_hook_missing())

/* The answer of a machine without a driver, or of a driver without the function. */
CUresult rs_hook_missing(void);
