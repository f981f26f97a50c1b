/* SPDX-License-Identifier: Apache-2.0 */
/* Advice for a process that compute-sanitizer runs.  The tool watches the driver's allocations;
 * it cannot see accesses between blocks that share one. */
#pragma once

#include "config/config.h"

/* Logs once how to give each block an allocation of its own, if compute-sanitizer runs this
 * process and the settings make blocks share allocations. */
void rs_sanitizer_advise(const struct rs_config *config);
