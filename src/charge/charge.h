/* SPDX-License-Identifier: Apache-2.0 */
/* Counts memory that the program takes from the driver beside the stacks.  A hook charges the
 * device's account, makes the driver's call, and then settles the charge: keeps, corrects or takes
 * it back by the call's result.  When the limit leaves no room, the hook answers
 * CUDA_ERROR_OUT_OF_MEMORY without the call.
 *
 * All functions are thread safe, and none holds a lock across a driver call.  A function whose
 * comment names no other condition is called only where stacks serve in this process; the hook has
 * asked that (config/mode.h). */
#pragma once

#include "base/check.h"
#include "context/limit.h"
#include "driver/cuda.h"
#include "ledger/account.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

struct rs_context;
struct rs_charged;

/* In place of a device's number: no account is charged. */
enum { RS_NO_DEVICE = -1 };

/* The device and the context to which a call is charged.  The call's hook finds them once. */
struct rs_charge_owner {
    int device; /* or RS_NO_DEVICE */
    /* The allocation ends with this context; NULL: it outlives contexts. */
    struct rs_context *context;
};

/* One call under way, which the driver may refuse. */
struct rs_charge {
    struct rs_charged *record; /* the allocation's record; NULL: the allocation is not counted */
    int reclaims_on; /* the device whose unused memory is given back before the call is made again;
                        or RS_NO_DEVICE */
    /* The state before the call, by which a stale refusal is recognised. */
    struct rs_refusal refusal;

    /* The fields below are for a stream-ordered allocation. */
    struct rs_pool_record *pool; /* the pool of the allocation; NULL: the pool is not counted */
    int device;                  /* or RS_NO_DEVICE */
    size_t bytes;                /* the bytes that the program asked for */
    size_t charged;              /* bytes charged in advance for the growth of the pool */
    size_t claimed;              /* bytes of the pool's free memory that this call counts on */
    unsigned turn; /* how often this allocation was undone (rs_charge_async_undo); the caller sets
                      it to 0 at first */
};

/* The kind of key under which an allocation is entered; each kind has a table of its own. */
enum rs_charge_keys {
    RS_KEYS_ADDRESSES, /* CUdeviceptr */
    RS_KEYS_ARRAYS,    /* CUarray and CUmipmappedArray */
    RS_KEYS_HANDLES,   /* CUmemGenericAllocationHandle */
    RS_KEYS
};

/* Charges size_bytes to the owner, and reclaims memory while the limit leaves no room.  Called
 * inside a request (base/request.h), as is everything up to rs_charge_end.  Returns true when the
 * driver may be asked.  Returns false when nothing more can be reclaimed, or out of host memory:
 * then the hook answers CUDA_ERROR_OUT_OF_MEMORY.  For RS_NO_DEVICE it charges nothing and returns
 * true. */
bool rs_charge_begin(struct rs_charge *charge, const struct rs_charge_owner *owner,
                     enum rs_path path, size_t size_bytes);

/* Called after the driver's call.  Reclaims memory if the driver was out of memory, possibly with a
 * wait.  Returns true when some was given back since, so that the call must be made once more. */
bool rs_charge_again(struct rs_charge *charge, CUresult result);

/* Settles the charge by the call's result.  A later free names the allocation by `key`. */
void rs_charge_end(struct rs_charge *charge, CUresult result, unsigned long long key);

/* Called around a driver call that frees memory or releases a handle.  Begin returns the
 * allocation's record, or NULL when no counted allocation has this key.  If this is the
 * allocation's last handle, begin takes the record out of its table, since the driver may give the
 * same key to another thread during the call.  End counts the free, or enters the record again if
 * the driver refused, and returns the driver's result.  `serving`: stacks serve in this process
 * (config/mode.h); if not, begin returns NULL. */
struct rs_charged *rs_charge_free_begin(bool serving, enum rs_charge_keys keys,
                                        unsigned long long key);
CUresult rs_charge_free_end(struct rs_charged *record, CUresult result);

/* Called when a context has ended, and its allocations with it: takes their charges back and drops
 * their records.  The caller holds the contexts' lock. */
void rs_charge_forget(const struct rs_context *context);

/* ---- virtual memory: the memory of a handle lives until all its handles are released and all its
 * mappings are gone ---- */

/* Counts one more reference to a handle, from cuMemRetainAllocationHandle or from the import of a
 * handle that this process has exported.  `address`: an address at which the handle's memory is
 * mapped; 0: not known. */
void rs_charge_retained(CUmemGenericAllocationHandle handle, CUdeviceptr address);

/* Called around cuMemMap.  Begin stores a mapping in *mapping, or NULL when the memory of the
 * handle is not counted.  Returns false when out of host memory: then the hook answers
 * CUDA_ERROR_OUT_OF_MEMORY. */
struct rs_mapping;
bool rs_charge_map_begin(struct rs_mapping **mapping, CUdeviceptr address, size_t size_bytes,
                         CUmemGenericAllocationHandle handle);
void rs_charge_map_end(struct rs_mapping *mapping, CUresult result);

/* Called around cuMemUnmap.  Begin takes the counted mappings in the range off the list and returns
 * them; NULL when there are none.  End forgets them, or puts them back if the driver refused. */
struct rs_mapping *rs_charge_unmap_begin(CUdeviceptr address, size_t size_bytes);
void rs_charge_unmap_end(struct rs_mapping *found, CUresult result);

/* ---- stream-ordered pools: all memory that a driver's pool holds is charged, cached or not ----
 */

/* Charges the growth of `pool` (NULL: the current pool of the owner's device).  Like
 * rs_charge_begin, this is called inside a request.  The per-thread default stream is
 * CU_STREAM_PER_THREAD, the legacy one NULL.  Returns false when the limit leaves no room, or out
 * of host memory: then the hook answers CUDA_ERROR_OUT_OF_MEMORY. */
bool rs_charge_async_begin(struct rs_charge *charge, const struct rs_charge_owner *owner,
                           CUmemoryPool pool, CUstream stream, size_t size_bytes);

/* Settles the charge.  Returns true when the pool has grown past the limit although the growth was
 * charged in advance.  Then the caller must undo the allocation (rs_charge_async_undo). */
bool rs_charge_async_end(struct rs_charge *charge, CUresult result, CUdeviceptr address);

/* Frees an allocation after rs_charge_async_end returned true, in the order of its stream.  Returns
 * true when the allocation should begin again, since the library has learnt by how much the pool
 * grows.  Returns false after a few attempts. */
bool rs_charge_async_undo(struct rs_charge *charge, CUdeviceptr address, CUstream stream);

/* Enters a pool that the program made, or whose handle it asked the driver for.  A pool of host
 * memory is not counted. */
void rs_charge_pool_made(CUmemoryPool handle, int device, bool is_host);

/* Called around cuMemPoolDestroy.  Begin waits for the library's own calls that use the pool, and
 * returns the pool's record; NULL when the pool is not known. */
struct rs_pool_record *rs_charge_pool_destroy_begin(CUmemoryPool handle);
void rs_charge_pool_destroy_end(struct rs_pool_record *pool, CUresult result);

/* Called before a graph's memory node of size_bytes is made.  Returns false when the limit leaves
 * no room for it, or out of host memory: then the hook answers CUDA_ERROR_OUT_OF_MEMORY. */
bool rs_charge_graph_node(int device, size_t size_bytes);

/* Asks the driver how much the device's pools hold now, and charges the account for that. */
void rs_charge_follow_pools(int device);

/* A set of devices, bit n for device n: memory was freed in one of the device's pools since
 * rs_charge_synchronised_slowly last read them, or they still held free memory then. */
extern _Atomic uint64_t rs_charge_unseen;

/* Reads the pools of the devices in rs_charge_unseen. */
void rs_charge_synchronised_slowly(void);

/* Called when the program has waited for its work, after which the driver may have executed frees
 * in the order of streams: reads the pools in which these may be.  May be called in any mode. */
static inline void rs_charge_synchronised(void)
{
    if (RS_UNLIKELY(atomic_load_explicit(&rs_charge_unseen, memory_order_relaxed)))
        rs_charge_synchronised_slowly();
}

/* Called when a limit was set.  Adds the device's default and current pool, which the program uses
 * without naming them, to those that are read, and charges for what all pools hold. */
void rs_charge_begin_to_follow(int device);

/* Returns the bytes that are charged for the device's pools and are in no allocation of the
 * program.  Some may lie in pieces that are too small for a request. */
size_t rs_charge_spare_bytes(int device);

/* Returns the bytes that the program has freed in the order of streams and that the device's pools
 * still count as used. in_vain: the caller has waited for them in vain; this result and later ones
 * leave that many bytes out. */
size_t rs_charge_leaving_bytes(int device, bool in_vain);

/* Has each of the device's pools give free memory back until it holds no more than keep_bytes; the
 * memory of graphs gives back all that is free.  Writes the bytes that all of them hold afterwards
 * to *held_bytes, unless held_bytes is NULL.  Returns the bytes given back. */
size_t rs_charge_trim_pools(int device, size_t keep_bytes, size_t *held_bytes);

/* Called by charge.c, under rs_charge_lock, when an allocation of the pool was freed. */
void rs_charge_pool_freed(struct rs_pool_record *pool, size_t size_bytes, size_t charged_bytes);

/* Returns the bytes of device memory that an array with `levels` mip levels takes.  As textures are
 * tiled, a row takes a multiple of 64 bytes, and the number of rows is a multiple of eight; the sum
 * is rounded up to 4 KiB. 0 for arrays without memory of their own (sparse, or mapped later).
 * SIZE_MAX when the size overflows. */
size_t rs_array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

/* ---- unused memory goes back to the driver when the program asks for it, and before a request of
 * any path is refused ---- */

/* Has every stack of the device's contexts, pinned memory's too, give its wholly free memory back
 * to the driver, except keep_bytes in all.  Returns the bytes given back.  No lock may be held.
 * Thread safe.
 *
 * Some memory goes back only by a driver call that waits for the GPU (context/visit.h).  It stays
 * while its context works; rs_trim waits up to 1 s, inside a request (base/request.h) up to 50 ms,
 * for the context to be idle.  *is_left tells whether some such memory stayed, or the end of a
 * context took longer. */
size_t rs_trim(int device, size_t keep_bytes, bool *is_left);

/* Called before a request for memory is refused.  Has every stack of the device but those of pinned
 * memory, and then the program's stream-ordered pools and graphs, give their unused memory back.
 * What the program set aside as initial sizes goes last.  For host memory (refusal->memory) the
 * stacks over host memory on all devices come first.
 *
 * With may_wait, when nothing came back, it waits as long as the thread's request may wait
 * (base/request.h): for memory that the GPU still uses, if that can be enough, and for other
 * processes of the job.  Returns true when another try may succeed; false also when it is called
 * from within itself. */
bool rs_reclaim(int device, const struct rs_refusal *refusal, bool may_wait);

/* ---- a process whose request the job's limit would refuse gets idle memory from the job's other
 * processes (shared/job_limit.h).  It asks those that have declared idle memory, and waits for a
 * bounded time.  A process that is asked notices that at its next call that allocates, frees or
 * waits for its work, or at once if it has a thread for commands (RMM_CONTROL=thread).  It gives
 * back what is lacking, first unused memory beyond the initial sizes of its stacks; the job's limit
 * reserves those bytes for the processes that asked ---- */

/* Gives back what other processes have asked for, and declares what is idle now; clears
 * RS_ATTENTION_JOB.  Makes no driver call that waits without bound.  No lock may be held. */
RS_COLD void rs_job_look(void);

/* ---- calls for which the driver takes memory of its own: modules, graphs, streams, contexts and
 * the like.  When the driver is out of memory while stacks hold unused memory, the stacks give it
 * back and the call is made again.  Only for calls that leave nothing behind when they fail. ----
 */

/* How often one call is made at most.  Other threads may take the memory that was given back, so
 * the attempts are bounded. */
enum { RS_AGAIN_TRIES = 16 };

/* In place of a device's number: the current context's device. */
enum { RS_AGAIN_CURRENT = -1 };

/* Gives memory back when the driver's call that returned `result` was out of memory, and returns
 * true when the call should be made again. host_bytes: what the call takes of the host's memory, so
 * that host memory is given back; 0: the call takes device memory.  *deadline_ns is the end of all
 * waits for this call, which rs_again sets; it must be 0 before the first attempt.  The thread's
 * current context stays as it is.  Thread safe; no lock may be held. */
RS_COLD bool rs_again(CUresult result, int device, size_t host_bytes, uint64_t *deadline_ns);

/* Counts an out-of-memory error of the driver that the program is about to get (context/limit.h).
 * Returns that error. */
RS_COLD CUresult rs_again_refused(int device, size_t host_bytes);

/* An expression that makes a driver call, and repeats it as long as rs_again returns true.
 * RS_AGAIN_HOST is for a call that takes size_bytes of host memory.  Its value is the result that
 * the program gets; a final out-of-memory error is counted (rs_again_refused).  `device` is
 * evaluated only after an out-of-memory error. */
#define RS_AGAIN(device, call)          RS_AGAIN_TOLD(device, 0, call)
#define RS_AGAIN_HOST(size_bytes, call) RS_AGAIN_TOLD(RS_AGAIN_CURRENT, size_bytes, call)

#define RS_AGAIN_TOLD(device, host_bytes, call)                                                    \
    ({                                                                                             \
        CUresult told_ = RS_AGAIN_FOR(device, host_bytes, call);                                   \
        RS_UNLIKELY(told_ == CUDA_ERROR_OUT_OF_MEMORY) ? rs_again_refused(device, host_bytes)      \
                                                       : told_;                                    \
    })

/* Does as RS_AGAIN, but does not count a final out-of-memory error; the caller counts it. */
#define RS_AGAIN_FOR(device, host_bytes, call)                                                     \
    ({                                                                                             \
        int tries_left_ = RS_AGAIN_TRIES;                                                          \
        uint64_t deadline_ns_ = 0;                                                                 \
        CUresult result_;                                                                          \
        do                                                                                         \
            result_ = (call);                                                                      \
        while (RS_UNLIKELY(result_ == CUDA_ERROR_OUT_OF_MEMORY) && --tries_left_ > 0 &&            \
               rs_again(result_, device, host_bytes, &deadline_ns_));                              \
        result_;                                                                                   \
    })

/* ---- what charge.c and pool.c share: records of memory that the driver made for the program
 * itself.  One lock protects them all; no driver call is made under it ---- */

extern struct rs_mutex rs_charge_lock;

struct rs_charged {
    enum rs_charge_keys keys; /* the kind of `key`, which is also the record's table */
    unsigned long long key;
    enum rs_path path;
    int device;
    /* The allocation ends with this context; NULL: it outlives contexts. */
    struct rs_context *context;
    struct rs_pool_record *pool; /* the pool of a stream-ordered allocation, which is charged in
                                    place of the allocation; else NULL */
    size_t size_bytes;
    struct rs_footprint_share share;
    bool is_shared; /* charged by address, since driver blocks may be shared with other allocations
                       (ledger/account.h) */
    /* The numbers of handles and mappings of virtual memory.  Any other allocation counts as one
     * handle. */
    unsigned handles, mappings;
    unsigned calls; /* calls under way that use the record */
};

/* Returns a zeroed record, and makes sure that its table has room for it.  NULL when out of host
 * memory.  The caller holds the lock. */
struct rs_charged *rs_charged_new(enum rs_charge_keys keys);

/* Enters an allocation that the driver has made.  The caller holds the lock. */
void rs_charged_enter(struct rs_charged *record, unsigned long long key);
