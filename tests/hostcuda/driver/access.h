/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the accesses of a device to memory. The caller holds the lock. */
#pragma once

#include "driver/op.h"

/* False if one of the work's ranges would fault on the device. */
bool hc_access_is_allowed(const struct hc_ctx *ctx, const struct hc_work *work);
