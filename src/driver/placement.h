/* SPDX-License-Identifier: Apache-2.0 */
/* Where pages of managed and system memory lie: advice and prefetches, by whichever of the driver's
 * functions there is (before 12.2 a device number, -1 for the host; since then a location).
 *
 * All are optimisations: what the driver refuses (memory that does not migrate, a device that
 * cannot be told) costs nothing but the call.  Made in relaxed capture mode with `context` current.
 * Thread safe. */
#pragma once

#include "driver/cuda.h"

enum { RS_PLACEMENT_HOST = CU_DEVICE_CPU };

/* Advice about [address, address + size_bytes); `where` is a device or RS_PLACEMENT_HOST.
 * The driver applies it to whole pages. */
CUresult rs_placement_advise(CUcontext context, CUdeviceptr address, size_t size_bytes,
                             CUmem_advise advice, int where);

/* Starts moving the range to `where`, in the order of `stream`. */
CUresult rs_placement_prefetch(CUcontext context, CUdeviceptr address, size_t size_bytes, int where,
                               CUstream stream);
