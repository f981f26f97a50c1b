/* SPDX-License-Identifier: Apache-2.0 */
/* What an allocation really takes of a device, for the account: the driver cuts requests up to 1
 * MiB from blocks of 2 MiB that they share, and gives larger ones whole blocks (MEASURED.md).
 * A thousand requests of one byte must not pass a limit as a thousand bytes, nor cost a thousand
 * blocks, so shared blocks are counted by address, once for each context. */
#pragma once

#include "driver/cuda.h"
#include "ledger/account.h"

/* Charges the most that the driver may take for the request, before it is asked.  False, with
 * nothing counted, when that exceeds the limit.  Thread safe, as all of these. */
bool rs_footprint_take(struct rs_account *account, size_t size_bytes, enum rs_memory memory);

/* The driver refused. */
void rs_footprint_untake(struct rs_account *account, size_t size_bytes, enum rs_memory memory);

/* The driver answered with that address: corrects the charge to *charged_bytes, and peaks rise.
 * False when out of host memory; nothing has changed then. */
bool rs_footprint_settle(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                         enum rs_memory memory, size_t *charged_bytes);

/* The allocation is on its way back to the driver.  Returns the bytes charged for it, for
 * rs_account_give_as when the driver has it.  Needs no host memory. */
size_t rs_footprint_leave(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                          enum rs_memory memory);

/* How an allocation without an address is counted. */
struct rs_footprint_share {
    size_t charged_bytes; /* more, when it was taken */
    bool is_packed;       /* beside other small ones */
};

/* Device memory whose address the driver does not tell (arrays): small ones share blocks as closely
 * as what was freed before leaves room for.  False, with nothing counted, when that exceeds the
 * limit. */
bool rs_footprint_pack(struct rs_account *account, size_t size_bytes,
                       struct rs_footprint_share *share);

/* The driver has it back.  Returns the bytes that are charged no longer. */
size_t rs_footprint_unpack(struct rs_account *account, size_t size_bytes,
                           const struct rs_footprint_share *share);

/* The driver refused it.  Returns the same. */
size_t rs_footprint_unpack_refused(struct rs_account *account, size_t size_bytes,
                                   const struct rs_footprint_share *share);

/* A context is gone with all it held (with rs_account_lose). */
void rs_footprint_lose(struct rs_account *account);

/* The most that the driver may take for a request. */
size_t rs_footprint_most(size_t size_bytes);
