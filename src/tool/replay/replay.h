/* SPDX-License-Identifier: Apache-2.0 */
/* Plays a sequence through a stack: the library's own resources on a device that only counts
 * (device.h). */
#pragma once

#include "base/log.h"
#include "tool/replay/sequence.h"

/* lag_ns: by which the GPU is behind the program.  False after a diagnostic about the expression.
 */
bool replay_play(const struct sequence *sequence, const char *expression, uint64_t lag_ns,
                 struct rs_diagnostics *diagnostics, struct replay_result *result);
