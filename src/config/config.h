/* SPDX-License-Identifier: Apache-2.0 */
/* Settings: what the environment variables (config/variables.def) amount to for each device.
 *
 * RMM_RESOURCE gives a stack as an expression; the short variables build the same expression, so
 * that the common cases need no grammar.  A name with _0, _1, ... is for that device alone. */
#pragma once

#include "base/log.h"
#include "config/settings.h"
#include "resource/expression.h"

#include <stdbool.h>

/* Reads `environment`, an array like environ, into *config.  Writes a diagnostic for each bad
 * setting.  Returns the number of diagnostics; config->on_error is valid in any case.  The
 * config lives until rs_config_free. */
unsigned rs_config_parse(char *const *environment, struct rs_diagnostics *diagnostics,
                         struct rs_config *config);

/* Frees all that the config owns; it is empty and may be freed again. */
void rs_config_free(struct rs_config *config);

/* Returns the expression for a kind of memory on a device; NULL: the driver's own allocations
 * serve. */
const struct rs_expression *rs_config_stack(const struct rs_config *config, enum rs_kind kind,
                                            int device);

/* Returns how many set variables are for devices with numbers from `devices` on.  If there are
 * any, *first and *first_device are the first of them and its device. */
unsigned rs_config_count_absent(const struct rs_config *config, int devices,
                                const struct rs_source **first, int *first_device);

/* Returns RMM_LIMIT for the device (-1: for all devices) as it was written, not resolved to
 * bytes; NULL when it is not set. */
const struct rs_size *rs_config_limit(const struct rs_config *config, int device);
