/* SPDX-License-Identifier: Apache-2.0 */
/* Builds expressions from the settings. */
#pragma once

#include "base/log.h"
#include "config/config.h"
#include "config/variables.h"
#include "resource/expression.h"

#include <stdbool.h>
#include <stddef.h>

/* Builds config->stack for a kind of memory on a device (-1: devices without settings of their
 * own), if the settings ask for one.  It stays NULL after a diagnostic, or when out of host
 * memory. */
void rs_config_build_stack(struct rs_config *config, enum rs_kind kind, int device,
                           struct rs_diagnostics *diagnostics);

/* Builds a stack for device memory from a text that the process itself gives, with the additions
 * of RMM_FREE and RMM_IPC for all devices.  Returns NULL after a diagnostic, or when out of host
 * memory.  `source` and `config` must outlive the expression. */
struct rs_expression *rs_config_expression(const struct rs_config *config,
                                           const struct rs_source *source,
                                           struct rs_diagnostics *diagnostics);

/* Checks that no resource of the stack has an initial size above limit_bytes (0: no limit).
 * Returns false after a diagnostic otherwise.  If `environment` is NULL, an initial size that is
 * a percentage is not checked, since only a device tells its bytes. */
bool rs_config_fits_limit(const struct rs_expression *stack, size_t limit_bytes,
                          const struct rs_environment *environment,
                          struct rs_diagnostics *diagnostics);
