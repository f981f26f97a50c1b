/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: what the environment variables (config/variables.def) amount to for each device.
 *
 * RMM_RESOURCE gives a stack as an expression; the short variables build the same expression, so
 * that the common cases need no grammar.  A name with _0, _1, ... is for that device alone. */
#pragma once

#include "base/diagnostic.h"
#include "config/settings.h"
#include "resource/expression.h"

#include <stdbool.h>

/* Reads `environment` (like environ).  Reports every bad setting; returns the number of
 * diagnostics.  Even then on_error is valid.  The config lives until rs_config_free. */
unsigned rs_config_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                         struct rs_config *config);

void rs_config_free(struct rs_config *config);

/* The expression for a kind of memory on a device, or NULL. */
const struct rs_expression *rs_config_stack(const struct rs_config *config, enum rs_kind kind,
                                            int device);

/* How many variables are for devices from `devices` on, and the first of them. */
unsigned rs_config_count_absent(const struct rs_config *config, int devices,
                                const struct rs_source **first, int *first_device);

/* The device's limit (-1: that for all devices) as it was written, or NULL. */
const struct rs_size *rs_config_limit(const struct rs_config *config, int device);
