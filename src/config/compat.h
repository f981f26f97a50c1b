/* SPDX-License-Identifier: Apache-2.0 */
/* RMM_COMPAT=hami: CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_MEMORY_LIMIT_<N>, with values as
 * HAMi-core reads them, stand for RMM_LIMIT and RMM_LIMIT_<N>.  Where RMM_LIMIT is set they are not
 * taken. */
#pragma once

#include "base/log.h"
#include "config/values.h"

#include <stdbool.h>

/* Enters the limits of `environment` into the values, which all RMM_ variables are in, if
 * RMM_COMPAT asks for it. */
void rs_config_read_compat(struct rs_config_values *values, char *const *environment,
                           struct rs_diagnostics *diagnostics);

/* Logs for each such variable of `environment` what it has become (RMM_VERBOSE). */
void rs_config_say_compat(const struct rs_config_values *values, char *const *environment);

/* True for an entry of an environment that sets such a limit, of *device (-1: all); also where the
 * value is malformed, so that the error is found. */
bool rs_config_is_compat_limit(const char *entry, int *device);
