/* SPDX-License-Identifier: Apache-2.0 */
/* Placement of pages of managed and system memory: advice and prefetches, through the version of
 * the function that the driver has (before 12.2 it takes a device number, -1 for the host; since
 * then a location).
 *
 * All of these are optimisations: a call that the driver refuses (memory that does not migrate,
 * a device without the ability) costs only its time.  The calls are made in relaxed capture mode
 * with `context` current.  Thread safe. */
#pragma once

#include "driver/cuda.h"

enum { RS_PLACEMENT_HOST = CU_DEVICE_CPU };

/* Gives advice about [address, address + size_bytes); `where` is a device number or
 * RS_PLACEMENT_HOST.  The driver applies it to whole pages.  Returns the driver's answer. */
CUresult rs_placement_advise(CUcontext context, CUdeviceptr address, size_t size_bytes,
                             CUmem_advise advice, int where);

/* Starts moving the range to `where` (as for rs_placement_advise), in the order of `stream`.
 * Returns the driver's answer. */
CUresult rs_placement_prefetch(CUcontext context, CUdeviceptr address, size_t size_bytes, int where,
                               CUstream stream);
