/* SPDX-License-Identifier: Apache-2.0 */
/* Counting what the program takes from the driver by itself, beside our stacks.  A hook charges,
 * makes the driver's call, and settles; where the limit leaves no room it answers
 * CUDA_ERROR_OUT_OF_MEMORY and does not call.  All of it is thread safe, and none of it holds a
 * lock across a driver call. */
#pragma once

#include "base/check.h"
#include "context/limit.h"
#include "driver/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct rs_context;
struct rs_charged;

/* One call under way. */
struct rs_charge {
    struct rs_charged *record; /* NULL: this call is not counted */
    bool taken_out;            /* of its table, with room kept for it to go back */
    uint64_t releases;         /* of the device's account, before the driver was asked */
};

/* What the keys of settled allocations are. */
enum rs_charge_keys { RS_KEYS_ADDRESSES, RS_KEYS_ARRAYS, RS_KEYS_HANDLES, RS_KEYS };

/* Charges size_bytes of the current context's device (or of `device`, where it is not negative:
 * memory that outlives contexts).  False, with everything that could be reclaimed given back, when
 * the limit leaves no room or host memory is out: then the answer is CUDA_ERROR_OUT_OF_MEMORY. When
 * true, a request of the thread's has begun, which rs_charge_end ends. */
bool rs_charge_begin(struct rs_charge *charge, enum rs_path path, int device, size_t size_bytes);

/* After the driver's call.  True when it must be made once more: it was out of memory, and
 * something was given back since, perhaps after a wait. */
bool rs_charge_again(struct rs_charge *charge, CUresult result);

/* The call's outcome; `key` is what a later free names.  Returns the result to answer. */
CUresult rs_charge_end(struct rs_charge *charge, CUresult result, unsigned long long key);

/* Around a free: takes the allocation out before the driver may give the same key to another
 * thread, and counts it, or enters it again where the driver refused. */
void rs_charge_free_begin(struct rs_charge *charge, enum rs_charge_keys keys,
                          unsigned long long key);
void rs_charge_free_end(struct rs_charge *charge, CUresult result);

/* A context is gone with its allocations.  Called with the contexts' lock held. */
void rs_charge_forget(const struct rs_context *context);

/* ---- virtual memory: a handle's memory lives until all its handles are released and all its
 * mappings are gone ---- */

void rs_charge_release_begin(struct rs_charge *charge, CUmemGenericAllocationHandle handle);
void rs_charge_release_end(struct rs_charge *charge, CUresult result);

/* One more reference to a handle, by cuMemRetainAllocationHandle or an import of our own export. */
void rs_charge_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address);

/* Around cuMemMap.  False when out of host memory: then answer so. */
struct rs_mapping;
bool rs_charge_map_begin(struct rs_mapping **mapping, CUdeviceptr address, size_t size_bytes,
                         CUmemGenericAllocationHandle handle);
void rs_charge_map_end(struct rs_mapping *mapping, CUresult result);

/* Around cuMemUnmap: the mappings that lie in the range. */
struct rs_mapping *rs_charge_unmap_begin(CUdeviceptr address, size_t size_bytes);
void rs_charge_unmap_end(struct rs_mapping *found, CUresult result);

/* ---- stream-ordered pools: what the driver's pool holds counts, cached or not ---- */

struct rs_pool_charge {
    struct rs_pool_record *pool; /* NULL: not counted */
    struct rs_charged *record;   /* of the allocation */
    int device;
    uint64_t releases; /* of the device's account, before the driver was asked */
    size_t bytes;      /* asked for */
    size_t charged;    /* for what the pool may grow by */
    size_t claimed;    /* of what the pool keeps */
    bool in_graph;     /* the stream captures: a graph's memory */
    unsigned turn;     /* how often the pool grew past the limit for this allocation; begins as 0 */
};

/* `pool` NULL: the current one of the stream's device.  False: out of memory.  When true, a request
 * of the thread's has begun, which rs_charge_async_end ends. */
bool rs_charge_async_begin(struct rs_pool_charge *charge, CUmemoryPool pool, CUstream stream,
                           bool per_thread_default, size_t size_bytes);
bool rs_charge_async_again(struct rs_pool_charge *charge, CUresult result);

/* True when the pool grew past the limit all the same: the allocation must be freed again. */
bool rs_charge_async_end(struct rs_pool_charge *charge, CUresult result, CUdeviceptr address);

/* Frees it in its stream's order.  True: to be begun anew, with what is known by now. */
bool rs_charge_async_undo(struct rs_pool_charge *charge, CUdeviceptr address, CUstream stream,
                          bool per_thread_default);

/* A pool of such memory was made, or asked for. */
void rs_charge_pool_made(CUmemoryPool handle, CUmemAllocationType type,
                         const CUmemLocation *location);
struct rs_pool_record *rs_charge_pool_destroy_begin(CUmemoryPool handle);
void rs_charge_pool_destroy_end(struct rs_pool_record *pool, CUresult result);

/* A graph's memory node of that size is about to be made.  False: out of memory. */
bool rs_charge_graph_node(int device, size_t size_bytes);

/* Reads what the device's pools hold now. */
void rs_charge_follow_pools(int device);

/* The program has synchronised: the same for devices where something was freed in a pool since. */
void rs_charge_synchronised_slowly(void);

extern _Atomic uint64_t rs_charge_unseen; /* these devices, a bit each */

static inline void rs_charge_synchronised(void)
{
    if (RS_UNLIKELY(atomic_load_explicit(&rs_charge_unseen, memory_order_relaxed)))
        rs_charge_synchronised_slowly();
}

/* The same for the pools that everybody uses too: a limit is new. */
void rs_charge_begin_to_follow(int device);

/* What the device's pools are charged for and no allocation of the program's is in.  Some of it is
 * in pieces that are too small for a request. */
size_t rs_charge_spare_bytes(int device);

/* Of what the device's pools hold, what frees in the order of streams have not come to yet. */
size_t rs_charge_leaving_bytes(int device);

/* Those were waited for in vain: they count as leaving only when they change. */
void rs_charge_leaving_in_vain(int device);

/* Has the device's pools give back what they keep beyond keep_bytes.  Returns the bytes. */
size_t rs_charge_trim_pools(int device, size_t keep_bytes);

/* An allocation of a pool was freed (charge.c tells pool.c). */
void rs_charge_pool_freed(struct rs_pool_record *pool, size_t size_bytes, size_t charged_bytes);
