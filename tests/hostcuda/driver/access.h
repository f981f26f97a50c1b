/* SPDX-License-Identifier: Apache-2.0 */
/* What a device does on an access to memory. The caller holds the lock. */
#pragma once

#include "driver/op.h"

/* False if the device would fault on one of the work's ranges. */
bool hc_access_is_allowed(const struct hc_ctx *ctx, const struct hc_work *work);
