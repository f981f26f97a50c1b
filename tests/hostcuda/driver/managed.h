/* SPDX-License-Identifier: Apache-2.0 */
/* Residency of managed memory. Its bytes stay in one place; only the accounting moves: a block that
 * a device uses counts against that device's capacity until it is evicted, used by another device,
 * prefetched to the host or freed. The caller holds the lock. */
#pragma once

#include "driver/op.h"

/* A device is about to run work: brings the managed blocks of its ranges to it. */
void hc_managed_use(int device, const struct hc_work *work);

/* Moves a range, to the host with a device of -1. */
void hc_managed_move(uintptr_t address, size_t bytes, int device);

/* True if the range is managed memory in one allocation. */
bool hc_managed_holds(CUdeviceptr dptr, size_t bytes);

/* Note, and forget, the advice and the last prefetch of whole pages (advice.c). */
void hc_advice_prefetched(uintptr_t address, size_t bytes, int device);
void hc_advice_forget(uintptr_t address, size_t bytes);

/* Forgets the residency of a range that is freed. */
void hc_managed_forget(uintptr_t address, size_t bytes);

/* Evicts the block that came to the device longest ago; false if it holds none. */
bool hc_managed_evict(int device);
