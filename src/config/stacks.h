/* SPDX-License-Identifier: Apache-2.0 */
/* The expressions that the settings amount to. */
#pragma once

#include "base/diagnostic.h"
#include "config/settings.h"
#include "resource/expression.h"

/* Builds the stack for a device (-1: for those without settings of their own), if one is asked for.
 * None after reporting it, or when out of host memory. */
void rs_config_build_stack(struct rs_config *config, enum rs_kind kind, int device,
                           struct rs_diagnostics *diagnostics);

/* The stack for device memory that a text asks for inside the process, with what RMM_FREE (that for
 * all devices) adds to it.  NULL after reporting it, or when out of host memory.  The source and
 * the config outlive it. */
struct rs_expression *rs_config_expression(const struct rs_config *config,
                                           const struct rs_source *source,
                                           struct rs_diagnostics *diagnostics);
