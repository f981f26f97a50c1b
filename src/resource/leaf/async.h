/* SPDX-License-Identifier: Apache-2.0 */
/* What async and async_managed share: a driver memory pool of a stack's own. */
#pragma once

#include "resource/resource.h"

struct rs_async_config {
    size_t initial_size, release_threshold;
};

/* Ended by RS_OPTION_END. */
extern const struct rs_option rs_async_options[];

/* The settings against each other and against the device's size; the descriptor checks what the
 * driver must be able to.  False after reporting it. */
bool rs_async_validate(const struct rs_async_config *config,
                       const struct rs_environment *environment, const struct rs_source *source,
                       struct rs_diagnostics *diagnostics);

/* A leaf over a new pool of that type.  0, -ENOMEM, or -EIO when the driver refuses. */
int rs_async_create(const struct rs_mr_descriptor *descriptor, CUmemAllocationType type,
                    const struct rs_environment *environment, const struct rs_async_config *config,
                    struct rs_mr **out);

/* The pool of such a leaf, for tests. */
CUmemoryPool rs_async_pool(struct rs_mr *mr);
