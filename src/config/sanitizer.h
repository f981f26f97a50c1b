/* SPDX-License-Identifier: Apache-2.0 */
/* compute-sanitizer beside us: it watches the driver's allocations, and what lies in a larger one
 * is out of its sight. */
#pragma once

#include "config/config.h"

/* Says once how to give each block an allocation of its own, in a process that compute-sanitizer
 * runs, where the settings make blocks share one. */
void rs_sanitizer_advise(const struct rs_config *config);
