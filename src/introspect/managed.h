/* SPDX-License-Identifier: Apache-2.0 */
/* Advice (cuMemAdvise) and attachments (cuStreamAttachMemAsync) of managed blocks.
 *
 * The driver keeps advice per page and attachments per driver allocation; a block is neither.
 * Blocks share no page (RS_MANAGED_UNIT), so advice is forwarded unchanged, noted, and undone when
 * the block is freed: a reused block starts with the default.  Attachments change nothing: stacks
 * serve only globally attached memory, and only where all devices access managed memory
 * concurrently with the host, where an attachment restricts nothing. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Must be called before cuMemAdvise is forwarded.  True when the answer must be
 * CUDA_ERROR_INVALID_VALUE: the range lies in our memory, but not inside one live block. */
bool rs_managed_refuses_advice(CUdeviceptr address, size_t size_bytes);

/* Notes advice that the driver has accepted, for undoing it.  `device` is CU_DEVICE_CPU for the
 * host. */
void rs_managed_note_advice(CUdeviceptr address, CUmem_advise advice, CUdevice device);

/* Returns the device of a location of cuMemAdvise_v2; CU_DEVICE_CPU for all that are not a device.
 */
CUdevice rs_managed_device_of(CUmemLocation location);

/* Restores the default advice of a block that the program has freed.  Its driver calls do not wait
 * for the device, and work that still uses the block reads the same bytes.  Returns the driver's
 * error when it refuses; the block must then not be reused. */
CUresult rs_managed_unadvise(const struct rs_taken_block *block);

/* Must be called before cuStreamAttachMemAsync is forwarded.  True when *result is the answer.
 * Otherwise the call must be forwarded; for a block of ours the arguments then name its driver
 * allocation with global attachment, which changes nothing, so that the driver itself checks
 * stream, context and capture. */
bool rs_managed_attach(CUstream stream, bool is_per_thread, CUdeviceptr *address,
                       size_t *size_bytes, unsigned *flags, CUresult *result);
