/* SPDX-License-Identifier: Apache-2.0 */
/* Advice and attachments of managed blocks.
 *
 * The driver keeps both for pages and for its own allocations; a block is neither.  Blocks share no
 * page (RS_MANAGED_UNIT), so advice reaches the driver as it is, is noted, and is undone when the
 * block is freed: a reused block starts with the default.  Only memory attached globally is served,
 * and only where all devices access managed memory concurrently with the host; there an attachment
 * restricts nothing and promises nothing. */
#pragma once

#include "context/block.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Before cuMemAdvise reaches the driver: true when the answer is CUDA_ERROR_INVALID_VALUE instead,
 * for a range of our memory that is not inside one live block. */
bool rs_managed_refuses_advice(CUdeviceptr address, size_t size_bytes);

/* The driver took this advice: notes what is to be undone.  `device` is CU_DEVICE_CPU for the host.
 */
void rs_managed_note_advice(CUdeviceptr address, CUmem_advise advice, CUdevice device);

/* The device that a location of cuMemAdvise_v2 stands for. */
CUdevice rs_managed_device_of(CUmemLocation location);

/* Restores the default advice of a block that the program frees.  Calls that do not wait for the
 * device; work that still uses the block sees no other bytes by it.  The driver's error when it
 * refuses: then the block must not be reused. */
CUresult rs_managed_unadvise(const struct rs_taken_block *block);

/* Before cuStreamAttachMemAsync reaches the driver: true when *result is the answer instead.
 * Otherwise the call is to be forwarded; for a block of ours the arguments were made those of the
 * driver's allocation around it, attached globally as it is: so stream, context and capture get the
 * driver's own answers, and nothing changes. */
bool rs_managed_attach(CUstream stream, bool is_per_thread, CUdeviceptr *address,
                       size_t *size_bytes, unsigned *flags, CUresult *result);
