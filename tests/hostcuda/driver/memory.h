/* SPDX-License-Identifier: Apache-2.0 */
/* Every range of addresses that the driver handed out. The caller holds the lock. */
#pragma once

#include "driver/context.h"
#include "driver/race.h"
#include "driver/region.h"
#include "driver/stream.h"

/* Takes memory of a region for a context; CUDA_ERROR_OUT_OF_MEMORY if there is none. */
CUresult hc_memory_take(struct hc_region *region, struct hc_ctx *ctx, enum hc_kind kind,
                        size_t bytes, unsigned flags, struct hc_alloc **out);

/* Notes a range that lies outside all regions; false if it overlaps another. */
bool hc_memory_note(struct hc_alloc *alloc, struct hc_ctx *ctx);

/* Removes it from its context's list: it no longer dies with the context. */
void hc_memory_disown(struct hc_alloc *alloc);

/* Gives a range back at once, even while work uses it. */
void hc_memory_release(struct hc_alloc *alloc, enum hc_race_end why);
void hc_memory_free_all(struct hc_ctx *ctx);

/* Memory of cuMemAlloc in whole 2 MiB blocks that was freed by cuMemFreeAsync counts as used after
 * the stream has reached the free, until the program waits for that stream, an event or the
 * context; its addresses are free at once. The first notes it, the others release it. */
void hc_memory_linger(struct hc_stream *stream, const struct hc_alloc *alloc);
void hc_memory_settle_stream(struct hc_stream *stream);
void hc_memory_settle(struct hc_ctx *ctx);

/* The allocation whose requested range holds the address, or NULL. */
struct hc_alloc *hc_memory_find(uintptr_t address);

/* Returns the allocation that begins at the address, or NULL. */
struct hc_alloc *hc_memory_find_base(uintptr_t address);

/* Returns the region of an address; NULL for memory of the program and for ranges that were only
 * noted. */
struct hc_region *hc_memory_region_of(uintptr_t address);

/* True if the device accesses the address directly; false for pageable host memory, which it
 * copies. */
bool hc_memory_is_known(uintptr_t address);
