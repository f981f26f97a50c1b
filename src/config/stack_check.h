/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that every stack must keep, from variables or from the C API. */
#pragma once

#include "base/log.h"
#include "config/variables.h"
#include "resource/expression.h"

#include <stdbool.h>
#include <stddef.h>

/* Checks that the stack can serve that kind of memory.  Returns it; or NULL, after a diagnostic
 * and with the stack freed, when it cannot.  A NULL stack is allowed. */
struct rs_expression *rs_config_checked(enum rs_kind kind, struct rs_expression *stack,
                                        struct rs_diagnostics *diagnostics);

/* Checks that no resource of the stack has an initial size above limit_bytes (0: no limit).
 * Returns false after a diagnostic otherwise.  If `environment` is NULL, an initial size that is
 * a percentage is not checked, since only a device tells its bytes. */
bool rs_config_fits_limit(const struct rs_expression *stack, size_t limit_bytes,
                          const struct rs_environment *environment,
                          struct rs_diagnostics *diagnostics);
