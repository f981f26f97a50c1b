/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of async and async_managed: a driver memory pool per stack. */
#pragma once

#include "resource/resource.h"

struct rs_async_config {
    size_t initial_size, release_threshold;
    bool ipc; /* the pool can be shared with other processes (ipc/pool.h) */
};

/* The options of both. */
#define RS_ASYNC_OPTIONS                                                                           \
    RS_OPTION_SIZE_ROW(                                                                            \
        struct rs_async_config, initial_size, "0",                                                 \
        "reserved at the first allocation; stays when the pool is trimmed, goes back "             \
        "where only that makes room for a request, and is reserved again when there "              \
        "is room",                                                                                 \
        .maximum = RS_SIZE_ADDRESSABLE, .beyond_whole = true,                                      \
        .aliases = {{"initial_pool_size", RS_OPTION_SIZE}}),                                       \
        RS_OPTION_SIZE_ROW(                                                                        \
            struct rs_async_config, release_threshold, "none",                                     \
            "reserved bytes above this go back to the driver at the next synchronisation",         \
            .none = true, .beyond_whole = true)

/* Checks the settings against each other and against the device's size.  (The descriptors check the
 * abilities of the driver.)  False after reporting the error. */
bool rs_async_validate(const struct rs_async_config *config,
                       const struct rs_environment *environment, const struct rs_source *source,
                       struct rs_diagnostics *diagnostics);

/* Makes a leaf over a new pool of this type.  Returns 0, -ENOMEM, or -EIO when the driver refuses.
 */
int rs_async_create(const struct rs_mr_descriptor *descriptor, CUmemAllocationType type,
                    const struct rs_environment *environment, const struct rs_async_config *config,
                    struct rs_mr **out);

/* Returns the driver's pool beneath an async leaf, for tests. */
CUmemoryPool rs_async_pool(struct rs_mr *mr);
