/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that nobody uses goes back to the driver: when the program asks, and before a request of
 * whatever path is refused. */
#pragma once

#include "ledger/account.h"

#include <stdbool.h>
#include <stddef.h>

/* Gives wholly free memory of every stack of the device's contexts back to the driver, pinned
 * memory's too, all but keep_bytes.  Returns what the stacks gave back.  Calls the driver, which
 * may wait for work of any context of the device: no lock may be held.  Thread safe. */
size_t rs_trim(int device, size_t keep_bytes);

/* Before a request for device memory fails: every stack for device memory, and then
 * the program's stream-ordered pools and graphs, give back what nobody uses; nothing is kept, not
 * even a pool's initial size.  may_wait: where that is nothing, waits for what is quarantined, for
 * as long as the calling thread's request may (base/request.h), unless the request is larger than
 * all that is not live.  `releases`: rs_account_releases before the refusal.  True when another try
 * may succeed; false when called by what it calls. */
bool rs_reclaim(int device, const struct rs_refusal *refusal, bool may_wait);
