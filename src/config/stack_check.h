/* SPDX-License-Identifier: Apache-2.0 */
/* What a stack must be, whoever asked for it. */
#pragma once

#include "base/diagnostic.h"
#include "config/variables.h"
#include "resource/expression.h"

#include <stdbool.h>
#include <stddef.h>

/* The stack, or NULL (with everything freed) when it cannot serve that kind of memory, after
 * reporting it. */
struct rs_expression *rs_config_checked(enum rs_kind kind, struct rs_expression *stack,
                                        struct rs_diagnostics *diagnostics);

/* False, after reporting it, when a resource of the stack begins with more than limit_bytes (0: no
 * limit).  With place NULL percentages are let through. */
bool rs_config_fits_limit(const struct rs_expression *stack, size_t limit_bytes,
                          const struct rs_environment *environment,
                          struct rs_diagnostics *diagnostics);
