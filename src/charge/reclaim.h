/* SPDX-License-Identifier: Apache-2.0 */
/* Unused memory goes back to the driver when the program asks for it, and before a request of any
 * path is refused. */
#pragma once

#include "ledger/account.h"

#include <stdbool.h>
#include <stddef.h>

/* Every stack of the device's contexts, pinned memory's too, gives its wholly free memory back to
 * the driver, except keep_bytes in all.  Returns the bytes given back.  Only where stacks serve. No
 * lock may be held.  Thread safe.
 *
 * Memory that only a waiting call of the driver gives back (context/visit.h) stays while its
 * context works; this waits for that up to 1 s, and inside a request (base/request.h) 50 ms.
 * *is_left: some stayed. */
size_t rs_trim(int device, size_t keep_bytes, bool *is_left);

/* Before a request for device memory is refused: every stack for device memory, and then the
 * program's stream-ordered pools and graphs, give their unused memory back, initial sizes at last.
 * may_wait: when nothing came back, waits for quarantined memory, as long as the thread's request
 * may wait (base/request.h), unless the request is larger than all memory that is not live.  True
 * when another try may succeed; false also when it is called from within itself. */
bool rs_reclaim(int device, const struct rs_refusal *refusal, bool may_wait);
