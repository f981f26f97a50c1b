/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks: functions that the library exports in place of the driver's. */
#pragma once

#include "driver/driver.h"

/* Declares the hooks. All but those in unexported.map are exported. The library calls none. */
#define HOOK(symbol, name, since, until, stream, group, summary)                                   \
    extern __typeof__(symbol) symbol __attribute__((visibility("default")));
#include "driver/entry_points.def"

/* Calls the driver's function. If the driver does not have it, the result is rs_hook_missing(). */
#define RS_FORWARD(symbol, arguments)                                                              \
    (RS_LIKELY(rs_driver_ready(true) && rs_driver.symbol) ? rs_driver.symbol arguments             \
                                                          : rs_hook_missing())

/* The address of the driver's function, or NULL when the driver does not have it. For hooks that
 * share one implementation (RS_HOOK_BY). */
#define RS_REAL(symbol) (RS_LIKELY(rs_driver_ready(true)) ? rs_driver.symbol : NULL)

/* Defines a hook that calls `function`, which implements the hooks of several versions of one
 * driver function. `function` gets the driver's function of this version (NULL when there is none)
 * and the arguments. */
#define RS_HOOK_BY(symbol, parameters, function, ...)                                              \
    CUresult symbol parameters                                                                     \
    {                                                                                              \
        return function(RS_REAL(symbol), __VA_ARGS__);                                             \
    }

/* Defines a hook that calls `before`, the driver and `after`.  `after` gets what `before` returned
 * and the driver's result, and returns the result for the program. */
#define RS_HOOK_BETWEEN(symbol, parameters, arguments, before, after)                              \
    CUresult symbol parameters                                                                     \
    {                                                                                              \
        __typeof__(before) between = before;                                                       \
                                                                                                   \
        return after(between, RS_FORWARD(symbol, arguments));                                      \
    }

/* Returns the error for a call whose function the driver does not have, or that is made on a
 * machine without a driver. */
CUresult rs_hook_missing(void);

/* Stores the device of a green context. Returns false for a handle that is no green context, and
 * when the driver cannot tell. */
bool rs_hook_green_device(CUgreenCtx green, CUdevice *device);
