/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * rmmshim: GPU memory resources for unmodified CUDA programs.
 *
 * A program needs nothing of this header: `LD_PRELOAD=librmmshim.so` and environment variables are
 * all it takes.  The header is for programs that want to know that they run under rmmshim, and to
 * ask or steer it; look the functions up with dlsym(RTLD_DEFAULT, ...) or, from Python, with
 * ctypes.CDLL(None), so that the program also starts without it.
 *
 * Functions that return int return 0, or a negative errno:
 *   -ENOTSUP  nothing is served in this process: no settings, bad ones, or a child after fork()
 *             whose parent had begun with CUDA
 *   -EAGAIN   CUDA has not been started (cuInit, or any call of the runtime), and the answer needs
 *             it
 *   -ENODEV   there is no device of that number
 *   -EINVAL   a wrong argument; rmmshim_last_error() may tell more
 *   -ENOMEM   out of host memory
 * All are thread safe.  None starts CUDA but rmmshim_torch_alloc, which may start a device's
 * primary context.  The first call reads the settings, as the first CUDA allocation does otherwise:
 * a bad one ends the process then, unless RMM_ON_ERROR says otherwise.
 *
 * `device` is the CUDA ordinal, bytes are bytes. */
#ifndef RMMSHIM_RMMSHIM_H
#define RMMSHIM_RMMSHIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RMMSHIM_API __attribute__((visibility("default")))

/** The version of the loaded library, "MAJOR.MINOR.PATCH".  Static text. */
RMMSHIM_API const char *rmmshim_version(void);

/** What went wrong in the calling thread's last rmmshim call that returned an error and had more to
 * say than its number: one line, shortened to fit.  Never NULL; the thread's next call may change
 * it. */
RMMSHIM_API const char *rmmshim_last_error(void);

/** The kinds of memory, each with stacks and counters of its own. */
enum rmmshim_kind {
    RMMSHIM_DEVICE_MEMORY = 0,  /**< cudaMalloc and its kin, wherever it lies */
    RMMSHIM_PINNED_MEMORY = 1,  /**< page-locked host memory: cudaHostAlloc, cudaMallocHost */
    RMMSHIM_MANAGED_MEMORY = 2, /**< cudaMallocManaged */
};

/** A device's memory of one kind as this library holds it: of all contexts of the process together.
 * What the driver serves itself (cudaMallocAsync, cuMemCreate, arrays, devices and kinds without
 * settings) is not in it, but in charged_bytes and refusals.  Pinned memory is the device's whose
 * context was current when it was allocated.
 *
 * Each member is exact at some moment during the call; while other threads allocate, two members
 * may be of different moments. */
struct rmmshim_statistics {
    /** Set by the caller to sizeof(struct rmmshim_statistics); afterwards how much of it is valid.
     * The struct grows at its end only. */
    uint64_t size;

    uint64_t used_bytes;      /**< live, as requested: not as rounded */
    uint64_t peak_used_bytes; /**< the most that was live at once */
    uint64_t used_blocks;     /**< live */
    uint64_t peak_used_blocks;
    uint64_t allocations; /**< blocks ever handed out */
    uint64_t frees;       /**< blocks ever freed, or lost with their context */

    uint64_t total_bytes;      /**< taken from the driver now: device memory, managed memory, and
                                    host memory where a device falls back on it */
    uint64_t peak_total_bytes; /**< the most at once; where it is of several contexts or resources,
                                    the sum of the peaks of those that were there together */
    uint64_t free_bytes;       /**< of the total, not in a live block: total = used + free + what
                                    sizes were rounded up by */
    uint64_t free_blocks;      /**< that the free bytes are in, as the resources keep them; those
                                    inside the driver's own pools are not known */

    /* The next three are of the device as a whole, whatever the kind. */
    uint64_t charged_bytes; /**< what counts against the limit, in the driver's own units: of all
                                 that this process takes from the driver, managed memory included */
    uint64_t limit_bytes;   /**< RMM_LIMIT or rmmshim_set_limit; 0: none */
    uint64_t refusals;      /**< requests to the driver that the limit prevented */

    uint64_t driver_allocations, driver_frees; /**< calls; nobody frees what ends with a context */

    uint64_t allocated_bytes; /**< ever handed out, as requested */
    uint64_t freed_bytes;     /**< ever freed, or lost with their context */
};

/** Fills in *statistics for device memory.  All zero for a device that nothing was allocated on.
 * -EINVAL: statistics is NULL or its size too small for any member. */
RMMSHIM_API int rmmshim_get_statistics(int device, struct rmmshim_statistics *statistics);

/** The same for any kind (enum rmmshim_kind).  -EINVAL also: no such kind. */
RMMSHIM_API int rmmshim_get_statistics_of(int device, int kind,
                                          struct rmmshim_statistics *statistics);

/** What was counted since a moment.  A level of counters begins at zero, so what was allocated
 * before and is freed in it makes used bytes and blocks negative; peaks are never below zero. */
struct rmmshim_counters {
    /** Set by the caller to sizeof(struct rmmshim_counters); afterwards how much of it is valid.
     * The struct grows at its end only. */
    uint64_t size;

    int64_t used_bytes, peak_used_bytes; /**< as requested */
    int64_t allocated_bytes;             /**< only grows */
    int64_t used_blocks, peak_used_blocks;
    int64_t allocations; /**< only grows */
};

/** The innermost level's counters; where none was pushed, those since the process began.  Levels
 * are a device's and a kind's (enum rmmshim_kind), for all threads together.  Peaks are exact while
 * one or two threads allocate; with more, each may add up to 4 MiB and 64 blocks that none has
 * seen. -EINVAL: counters is NULL or its size too small for any member, or there is no such kind.
 */
RMMSHIM_API int rmmshim_get_counters(int device, int kind, struct rmmshim_counters *counters);

/** Begins a level of counters, at zero, inside the current one: as push_counters of RMM's
 * statistics resource.  Neither pauses nor changes other counters or reports.  -EINVAL: no such
 * kind. */
RMMSHIM_API int rmmshim_push_counters(int device, int kind);

/** Ends the innermost level: its counters are in *counters (which may be NULL) and, added up, in
 * those of the level around it.  -ERANGE: there is none.  -EINVAL as above; then nothing ended. */
RMMSHIM_API int rmmshim_pop_counters(int device, int kind, struct rmmshim_counters *counters);

/** peak_used_bytes and peak_used_blocks of rmmshim_get_statistics_of begin anew at what is used
 * now. Levels keep their own peaks, and reports theirs.  -EINVAL: no such kind. */
RMMSHIM_API int rmmshim_reset_peaks(int device, int kind);

/** Gives memory that no block is in back to the driver: wholly free driver allocations of every
 * stack of the device, pinned and managed memory's too, after freed blocks whose work is done have
 * become free (drivers before 12.5 do not tell: there they stay).  A pool keeps its initial size.
 * keep_bytes: how many free bytes may stay.  Waits as cudaFree does when there is something to give
 * back.  Returns how many bytes less are held afterwards; 0 where nothing is served. */
RMMSHIM_API size_t rmmshim_trim(int device, size_t keep_bytes);

/** The most that this process may hold of a device from now on, over all contexts and stacks, free
 * memory included; 0: no limit.  What is held already stays: below that, free memory is given back
 * (rmmshim_trim), and nothing more is taken until it fits again; allocations that free memory can
 * serve still succeed, others are out of memory.  May be called before CUDA starts. */
RMMSHIM_API int rmmshim_set_limit(int device, size_t bytes);

/** The same as a share of the device's total memory, 0 (no limit) to 1. */
RMMSHIM_API int rmmshim_set_limit_fraction(int device, double fraction);

/** The limit in *bytes; 0: none.  Needs no CUDA but where RMM_LIMIT is a share of the device's
 * memory (-EAGAIN).  -EINVAL: bytes is NULL. */
RMMSHIM_API int rmmshim_get_limit(int device, size_t *bytes);

/** From now on the calling thread's device memory (cudaMalloc and its kin) comes from a stack of
 * that expression, as RMM_RESOURCE has them, until rmmshim_pop_resource.  Each context has one such
 * stack for each different text, shared by threads, made at its first use and kept until the
 * context ends: pushing a text again goes on with the same memory.  An initial size is taken when
 * the stack is made.  "cuda" stands for the driver's own allocations.  Blocks go back to the stack
 * that they came from, wherever and whenever they are freed.  Pinned memory and cudaMallocManaged's
 * are not concerned.
 *
 * -EINVAL: rmmshim_last_error() tells the place in the text.  -ENOSPC: 15 are pushed already, or 64
 * different texts were, in this process.  Without a current context a text that does not fit a
 * device (larger than its memory) shows only in its first allocation there, which is out of memory.
 */
RMMSHIM_API int rmmshim_push_resource(const char *expression);

/** Undoes the calling thread's latest rmmshim_push_resource.  -ERANGE: there is none. */
RMMSHIM_API int rmmshim_pop_resource(void);

/** From now on the device memory of all threads in contexts of this device comes from a stack of
 * that expression, as rmmshim_push_resource has them, in place of what the settings give; what a
 * thread has pushed itself comes first.  NULL: from what the settings give, as at the beginning.
 * May be called at any time, before CUDA starts too: blocks go back to the stack that they came
 * from, and a stack that is no longer allocated from keeps its memory until rmmshim_trim, need or
 * its context's end.  Allocations that have begun may still be served from the stack before.
 *
 * -EINVAL, -ENOSPC: as for rmmshim_push_resource, and the device keeps what it had. */
RMMSHIM_API int rmmshim_set_resource(int device, const char *expression);

/** Starts moving a block's memory to a device (-1: to the host), in the order of a stream
 * (cudaStream_t; NULL is the legacy default stream): for memory that migrates (managed, system),
 * before a kernel on that stream needs it.  Does nothing, without an error, for other memory and
 * where a device has no concurrent access to it.  The address may lie anywhere in the block; bytes
 * 0 is all from there to the block's end.  Pages move whole.
 *
 * -EINVAL: the range is not in one live block that this library serves.  -EIO: the driver refused
 * (rmmshim_last_error has its number). */
RMMSHIM_API int rmmshim_prefetch(const void *address, size_t bytes, int device, void *stream);

/** Writes the counters of all devices as they are now, as the report at exit has them
 * (RMM_STATISTICS, which need not be set; what that adds to a stack is in neither without it): to
 * "text:PATH", "json:PATH" or "prom:PATH", where what the file held before is replaced; NULL or
 * "text" is stderr.  PATH may hold %p and the like, as in RMM_STATISTICS, and is not the path of an
 * output of this process's that is still open.  Where nothing was allocated there is no report.
 * Waits for other threads' reports; no allocation waits for it longer than for its own counters.
 *
 * -EINVAL: where cannot be understood; rmmshim_last_error() tells the place.  Or -errno of opening
 * or writing the file, which is also one line on stderr. */
RMMSHIM_API int rmmshim_report(const char *where);

/** Notes in every event log that is open (RMM_LOG) that a phase of the program begins.  RMM's
 * format has no row for that, so it is a row of a file beside the log, LOG.marks: thread, time, how
 * many rows the log had then, the text (control characters as blanks, at most 200 bytes). -ENOENT:
 * no log is open; one opens at a device's first allocation.  Or what opening or writing the file
 * failed with. */
RMMSHIM_API int rmmshim_mark(const char *phase);

/** Allocation and free as torch.cuda.memory.CUDAPluggableAllocator wants them: in the order of a
 * stream.  A freed block is handed out again at once to allocations on the same stream, and to
 * others when all earlier work of its context is done.  The stream is a cudaStream_t, NULL being
 * the legacy default stream.  A stream that captures has no such order, nor has one that was
 * destroyed before the free: then the block waits for all.
 *
 * The block is the device's primary context's, whichever is current.  Where nothing is served it is
 * a driver allocation (cuMemAlloc), freed with cuMemFree.  NULL for size 0 or less, and when out of
 * memory, which is also one line on stderr, as PyTorch does not look at it. */
RMMSHIM_API void *rmmshim_torch_alloc(ssize_t size, int device, void *stream);
RMMSHIM_API void rmmshim_torch_free(void *ptr, ssize_t size, int device, void *stream);

/** The block is used on other streams too (Tensor.record_stream): when it is freed it waits for all
 * of its context's work instead of the one stream's.  For set_record_stream_fn of PyTorch's
 * allocator object; without it a program must not use record_stream. */
RMMSHIM_API void rmmshim_torch_record_stream(void *ptr, void *stream);

#ifdef __cplusplus
}
#endif

#endif
