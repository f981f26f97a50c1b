/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes that an allocation really takes of a device.  The driver cuts requests of up to 1
 * MiB from shared blocks of 2 MiB, and gives larger requests whole blocks (MEASURED.md).  A
 * thousand requests of one byte must not be charged as a thousand bytes, nor as a thousand
 * blocks, so shared blocks are counted by address, once per context. */
#pragma once

#include "driver/cuda.h"
#include "ledger/account.h"

/* Charges the most that the driver may take for the request, before the driver is asked.
 * Returns false, with nothing counted, when that exceeds the limit.  Thread safe, like all
 * functions here. */
bool rs_footprint_take(struct rs_account *account, size_t size_bytes, enum rs_memory memory);

/* The driver refused what rs_footprint_take charged. */
void rs_footprint_untake(struct rs_account *account, size_t size_bytes, enum rs_memory memory);

/* The driver granted what rs_footprint_take charged, at `address`: corrects the charge to
 * *charged_bytes, and peaks rise.  Returns false, with the account unchanged, when out of host
 * memory. */
bool rs_footprint_settle(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                         enum rs_memory memory, size_t *charged_bytes);

/* The allocation is about to go back to the driver.  Returns the bytes charged for it, which
 * rs_account_give_as takes once the driver has it.  Needs no host memory. */
size_t rs_footprint_leave(struct rs_account *account, CUdeviceptr address, size_t size_bytes,
                          enum rs_memory memory);

/* How an allocation without a known address is counted. */
struct rs_footprint_share {
    size_t charged_bytes; /* by how much the charge grew when it was taken */
    bool is_packed;       /* it shares driver blocks with other small allocations */
};

/* Charges device memory whose address the driver does not tell (arrays), before the driver is
 * asked.  Small allocations share blocks as closely as earlier frees leave room for.  Returns
 * false, with nothing counted, when that exceeds the limit. */
bool rs_footprint_pack(struct rs_account *account, size_t size_bytes,
                       struct rs_footprint_share *share);

/* The driver has the memory back.  Returns the bytes that are no longer charged. */
size_t rs_footprint_unpack(struct rs_account *account, size_t size_bytes,
                           const struct rs_footprint_share *share);

/* The driver refused what rs_footprint_pack charged.  Returns the bytes that are no longer
 * charged. */
size_t rs_footprint_unpack_refused(struct rs_account *account, size_t size_bytes,
                                   const struct rs_footprint_share *share);

/* A context is gone with all that it held: forgets its shared blocks.  Called with
 * rs_account_lose. */
void rs_footprint_lose(struct rs_account *account);

/* Returns the most bytes that the driver may take for a request: size_bytes rounded up to 2 MiB. */
size_t rs_footprint_most(size_t size_bytes);
