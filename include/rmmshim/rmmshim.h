/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * rmmshim: caps, shares, speeds up and debugs the GPU memory of CUDA programs.
 *
 * A program does not need this header: `LD_PRELOAD=librmmshim.so` and environment variables are
 * enough.  The header is for programs that want to know whether they run under rmmshim, and to
 * query or control it.  Look the functions up with dlsym(RTLD_DEFAULT, ...) or, from Python, with
 * ctypes.CDLL(None), so that the program also starts without the library.
 *
 * Functions that return int return 0, or a negative errno:
 *   -ENOTSUP  nothing is served in this process: it has no settings or invalid ones, or is a child
 *             after fork() of a parent that had used CUDA
 *   -EAGAIN   the answer needs CUDA, which has not been started (cuInit, or any runtime call)
 *   -ENODEV   there is no device of that number
 *   -EINVAL   an argument is invalid; rmmshim_last_error() may tell more
 *   -ENOMEM   out of host memory
 * All functions are thread safe.  None starts CUDA, except that rmmshim_torch_alloc may start a
 * device's primary context.  The first call reads the settings, unless a CUDA allocation has done
 * so before; an invalid setting then ends the process, unless RMM_ON_ERROR says otherwise.
 *
 * `device` is the CUDA ordinal; sizes are in bytes. */
#ifndef RMMSHIM_RMMSHIM_H
#define RMMSHIM_RMMSHIM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RMMSHIM_API __attribute__((visibility("default")))

/** The version of the loaded library, "MAJOR.MINOR.PATCH", as static text. */
RMMSHIM_API const char *rmmshim_version(void);

/** Describes the latest error that an rmmshim call of the calling thread returned, in one line of
 * at most 199 bytes; longer lines are cut. "" before the first error, never NULL. The next failing
 * call of the thread overwrites the text. */
RMMSHIM_API const char *rmmshim_last_error(void);

/** The kinds of memory.  Each has stacks and counters of its own. */
enum rmmshim_kind {
    RMMSHIM_DEVICE_MEMORY = 0,  /**< cudaMalloc and its kin, wherever the memory lies */
    RMMSHIM_PINNED_MEMORY = 1,  /**< page-locked host memory: cudaHostAlloc, cudaMallocHost */
    RMMSHIM_MANAGED_MEMORY = 2, /**< cudaMallocManaged */
};

/** Statistics of one kind of memory on one device, over all contexts of the process.  They cover
 * what stacks serve.  What the driver serves itself (cudaMallocAsync, cuMemCreate, arrays, devices
 * and kinds without settings) is only in charged_bytes and refusals.  Pinned memory counts for the
 * device whose context was current when it was allocated.
 *
 * Each member is exact at some moment during the call; while other threads allocate, two members
 * may be of different moments. */
struct rmmshim_statistics {
    /** Set by the caller to sizeof(struct rmmshim_statistics); on return, how many bytes of the
     * struct are valid.  The struct grows at its end only. */
    uint64_t size;

    uint64_t used_bytes; /**< bytes of live blocks, as requested, without rounding */
    /** The most since the process began or the last rmmshim_reset_peaks. */
    uint64_t peak_used_bytes;
    uint64_t used_blocks; /**< live blocks */
    uint64_t peak_used_blocks;
    uint64_t allocations; /**< blocks handed out since the process began */
    uint64_t frees;       /**< blocks freed, or lost with their context, since the process began */

    uint64_t total_bytes; /**< bytes that the stacks of this kind hold from the driver now, also
                             host memory that stands in for device memory */
    uint64_t peak_total_bytes; /**< the most total_bytes ever; of several contexts or resources that
                                  existed together, the sum of their peaks */
    uint64_t free_bytes;  /**< bytes of the total in no live block: total = used + free + the bytes
                             that sizes were rounded up by */
    uint64_t free_blocks; /**< free ranges that the resources keep; those inside the driver's own
                             pools are not known */

    /* The next three members are of the whole device, whatever the kind. */
    uint64_t charged_bytes; /**< bytes charged against the limit, in the driver's own units: all
                               that this process takes from the driver, managed memory included */
    uint64_t limit_bytes;   /**< the limit in bytes (RMM_LIMIT or rmmshim_set_limit); 0: none */
    uint64_t refusals; /**< out-of-memory errors that the program received, whether a limit or the
                          driver refused; a refusal inside rmmshim after which the memory was served
                          all the same does not count */

    uint64_t driver_allocations, driver_frees; /**< calls that the stacks made; memory that ends
                                                  with its context is not freed by a call */

    uint64_t allocated_bytes; /**< bytes handed out since the process began, as requested */
    uint64_t freed_bytes; /**< bytes freed, or lost with their context, since the process began */
};

/** Fills in *statistics for device memory.  All counts are zero for a device on which nothing was
 * allocated.  -EINVAL: statistics is NULL, or statistics->size is less than 16 bytes. */
RMMSHIM_API int rmmshim_get_statistics(int device, struct rmmshim_statistics *statistics);

/** Does what rmmshim_get_statistics does, for any kind (enum rmmshim_kind). -EINVAL also: there is
 * no such kind. */
RMMSHIM_API int rmmshim_get_statistics_of(int device, int kind,
                                          struct rmmshim_statistics *statistics);

/** Counts of one level of counters. A level begins at zero. If blocks are freed that were allocated
 * before it began, used bytes and blocks may be negative; peaks are never below zero. */
struct rmmshim_counters {
    /** Set by the caller to sizeof(struct rmmshim_counters); on return, how many bytes of the
     * struct are valid.  The struct grows at its end only. */
    uint64_t size;

    int64_t used_bytes, peak_used_bytes; /**< as requested */
    int64_t allocated_bytes;             /**< only grows */
    int64_t used_blocks, peak_used_blocks;
    int64_t allocations; /**< only grows */
};

/** Fills in *counters with the counts of the innermost level, or, without a level, of the whole
 * life of the process. Each kind (enum rmmshim_kind) on each device has its own levels, shared by
 * all threads. Peaks are exact while one or two threads allocate; with more, each thread may hold
 * up to 4 MiB and 64 blocks that no peak includes. -EINVAL: counters is NULL, counters->size is
 * less than 16 bytes, or there is no such kind. -ENOTSUP also: rmmshim serves the process, but not
 * this kind of memory on this device. */
RMMSHIM_API int rmmshim_get_counters(int device, int kind, struct rmmshim_counters *counters);

/** Begins a level of counters, at zero, inside the current level, as push_counters of RMM's
 * statistics resource does. Other counters and reports do not change. -EINVAL: there is no such
 * kind. -ENOTSUP as for rmmshim_get_counters. */
RMMSHIM_API int rmmshim_push_counters(int device, int kind);

/** Ends the innermost level.  Its counts are written to *counters (unless counters is NULL), and
 * the level around it includes them.  -ERANGE: there is no level.  -EINVAL as for
 * rmmshim_get_counters; then no level has ended. */
RMMSHIM_API int rmmshim_pop_counters(int device, int kind, struct rmmshim_counters *counters);

/** Restarts peak_used_bytes and peak_used_blocks of rmmshim_get_statistics_of at what is used now.
 * Levels, phases and reports keep their own peaks.  -EINVAL: there is no such kind. */
RMMSHIM_API int rmmshim_reset_peaks(int device, int kind);

/** What the phases of one name took of one kind of memory on one device. An entry is one push and
 * its pop; entries that have not ended are included. What a nested entry takes counts in the
 * entries around it too, even if these have the same name. */
struct rmmshim_phase {
    /** Set by the caller to sizeof(struct rmmshim_phase); on return, how many bytes of the struct
     * are valid.  The struct grows at its end only. */
    uint64_t size;

    const char *name; /**< lives as long as the process */
    uint64_t entries; /**< entries, on all devices and whatever they allocated */
    uint64_t open;    /**< entries that have not ended */
    uint64_t unended; /**< entries that were never popped, and ended with their thread */

    /* All threads of the process, while the entry was open.  Entries of several threads at one time
     * count the same blocks. */
    uint64_t peak_bytes; /**< the most bytes of live blocks during any entry, less those that were
                            live when it began */
    uint64_t peak_used_bytes; /**< the most bytes of live blocks during any entry, those included */
    uint64_t allocated_bytes; /**< bytes handed out, summed over all entries */
    uint64_t allocations;     /**< blocks handed out, summed over all entries */

    /* The entry's own thread. Live threads beyond the 63rd that use phases or allocate share one
     * account. */
    uint64_t thread_peak_bytes; /**< as peak_bytes, but of what the thread allocated less what it
                                   freed */
    uint64_t thread_allocated_bytes, thread_allocations;

    /** The most charged_bytes (struct rmmshim_statistics) during any entry. It is of all kinds of
     * memory together, and is given for device memory only, else 0. */
    uint64_t peak_charged_bytes;
};

/** Begins a phase of the calling thread, inside its other ones.  Its name is cut to 127 bytes, and
 * control characters in it become blanks.  Each open event log has the row "begin NAME", as
 * rmmshim_mark writes rows.  There is room for 255 names; phases with other names are counted as
 * "(others)".  A phase inside 64 others only counts as an entry.  CUDA need not have been started.
 *
 * Allocations and frees do no work for phases.  A push and a pop each take about 1 us where one
 * device is in use and few phases are open.  Each looks at all devices in use (5 to 7 us with 8)
 * and, under one lock, at the open phases of all threads (71 us with 32 threads that have 20 open
 * each).  -EINVAL: name is NULL or empty. */
RMMSHIM_API int rmmshim_push_phase(const char *name);

/** Ends the phase that the calling thread has pushed last, and writes the row "end NAME" to open
 * event logs. -ERANGE: the thread has pushed none. */
RMMSHIM_API int rmmshim_pop_phase(void);

/** Fills in *phase for the name with number `index`. The first name that was ever pushed has number
 * 0, and a name keeps its number. Peaks are as exact as those of rmmshim_get_counters. -ERANGE: no
 * name has this number. -EINVAL: phase is NULL, phase->size is less than 16 bytes, or there is no
 * such kind. */
RMMSHIM_API int rmmshim_get_phase(int device, int kind, unsigned index,
                                  struct rmmshim_phase *phase);

/** Restarts the peaks of all phases: those of ended entries at 0, those of open entries at what is
 * used now. Other peaks do not change. -EINVAL: there is no such kind. */
RMMSHIM_API int rmmshim_reset_phase_peaks(int device, int kind);

/** Gives memory without blocks back to the driver: the wholly free driver allocations of every
 * stack of the device, those of pinned and managed memory too. Freed blocks whose work is done
 * count as free. A pool keeps its initial size. keep_bytes: how many free bytes may stay. Pinned
 * and managed memory, and with RMM_FREE=immediate all, goes back only where no work of its context
 * is under way: the call waits up to 1 s for that (with a driver before 12.5, as long as cudaFree
 * would). Returns by how many bytes the process holds less afterwards; 0 also when nothing is
 * served or there is no such device. */
RMMSHIM_API size_t rmmshim_trim(int device, size_t keep_bytes);

/** Sets the most bytes that this process may hold of a device from now on, over all contexts and
 * stacks, free memory included; 0: no limit.  Memory that is held already stays, but free memory is
 * given back (rmmshim_trim) when the new limit is exceeded.  Until the process is below the limit,
 * only allocations that free memory can serve succeed; others are out of memory.  May be called
 * before CUDA starts. */
RMMSHIM_API int rmmshim_set_limit(int device, size_t bytes);

/** Does what rmmshim_set_limit does, with a fraction of the device's total memory from 0 (no limit)
 * to 1. Needs CUDA to have started (-EAGAIN). -EINVAL: the fraction is out of range. */
RMMSHIM_API int rmmshim_set_limit_fraction(int device, double fraction);

/** Writes the limit to *bytes; 0: none.  Needs CUDA to have started (-EAGAIN) only where RMM_LIMIT
 * is a percentage of the device's memory.  -EINVAL: bytes is NULL. */
RMMSHIM_API int rmmshim_get_limit(int device, size_t *bytes);

/** Makes the calling thread's device memory (cudaMalloc and its kin) come from a stack of
 * `expression` (the syntax of RMM_RESOURCE) until rmmshim_pop_resource.  Each context has one stack
 * for each different text, shared by all threads, made at its first use and kept until the context
 * ends: pushing the same text again uses the same memory.  An initial size is taken when the stack
 * is made. "cuda" stands for the driver's own allocations.  Each block goes back to the stack that
 * it came from, wherever and whenever it is freed.  Pinned memory and cudaMallocManaged are not
 * affected.
 *
 * -EINVAL: the expression is invalid; rmmshim_last_error() names the place in the text.  -ENOSPC:
 * this thread has pushed 15 resources, or 64 different texts were used in this process.  -ENOTSUP
 * also: RMM_HOOKS leaves out device memory.  Without a current context, an expression that does not
 * fit a device (larger than its memory) is not noticed here; its first allocation there is out of
 * memory. */
RMMSHIM_API int rmmshim_push_resource(const char *expression);

/** Undoes the latest rmmshim_push_resource of the calling thread. -ERANGE: the thread has pushed no
 * resource. */
RMMSHIM_API int rmmshim_pop_resource(void);

/** Makes the device memory of all threads, in contexts of this device, come from a stack of
 * `expression` as rmmshim_push_resource describes, in place of the settings' stack. A resource that
 * a thread has pushed comes first for that thread. With NULL the settings' stack serves again. May
 * be called at any time, also before CUDA starts: each block goes back to the stack that it came
 * from. A stack that is no longer allocated from keeps its memory until rmmshim_trim, until a
 * request would be refused without it, or until its context ends. Allocations that have begun may
 * still be served from the previous stack.
 *
 * -EINVAL, -ENOSPC, -ENOTSUP: as for rmmshim_push_resource; the device keeps its previous resource.
 */
RMMSHIM_API int rmmshim_set_resource(int device, const char *expression);

/** Starts moving the memory of a block to a device (-1: to the host) in the order of a stream
 * (cudaStream_t; NULL: the legacy default stream), before a kernel on that stream needs it. It is
 * for memory that migrates (managed, system). For other memory, and on a device without concurrent
 * access to such memory, the call does nothing and returns 0. `address` may lie anywhere in the
 * block; bytes 0 means from there to the end of the block. Pages move whole.
 *
 * -EINVAL: the range is not inside one live block that this library serves. -EIO: the driver
 * refused (rmmshim_last_error() has its error number). */
RMMSHIM_API int rmmshim_prefetch(const void *address, size_t bytes, int device, void *stream);

/** Writes the counters of all devices now, in the form of the report at exit. RMM_STATISTICS need
 * not be set; without it, the counters of the resources that it adds to a stack are missing. where:
 * "text:PATH", "json:PATH", "prom:PATH" or "prom-all:PATH", which replaces the file's contents;
 * NULL or "text" is stderr. PATH may hold %p and the like, as in RMM_STATISTICS, and must not be
 * the path of an output that this process still has open. If nothing was allocated, no report is
 * written. The call waits for reports of other threads; an allocation waits for it only while the
 * counters of its own resource are read.
 *
 * -EINVAL: where cannot be parsed; rmmshim_last_error() names the place. Otherwise the negative
 * errno of opening or writing the file; the error is also one line on stderr. */
RMMSHIM_API int rmmshim_report(const char *where);

/** Notes in every open event log (RMM_LOG) that a phase of the program begins. RMM's format has no
 * row for a phase, so the row goes to a file beside the log, LOG.marks: thread, time, the number of
 * rows in the log then, and the text `phase` (control characters become blanks; at most 200 bytes).
 * The text goes into the recording (RMM_RECORD) too. -EINVAL: phase is NULL. -ENOENT: no log and no
 * recording is open; a log is opened at its device's first allocation, a recording at the
 * process's. Or the negative errno of opening or writing the file. */
RMMSHIM_API int rmmshim_mark(const char *phase);

/** Allocation and free for torch.cuda.memory.CUDAPluggableAllocator: both in the order of a stream
 * (cudaStream_t; NULL: the legacy default stream), sizes in bytes.  A freed block is handed out
 * again at once to allocations on the same stream, and to others when all earlier work of its
 * context is done.  A capturing stream, and one that was destroyed before the free, has no such
 * order; the block then waits for all work of its context.
 *
 * The block belongs to the device's primary context, whichever context is current.  Where nothing
 * is served it is a driver allocation (cuMemAlloc, cuMemFree).  Returns NULL for size 0 or less,
 * when out of memory, and after another error of the driver; the first failure is also one line on
 * stderr, as PyTorch does not check for it. */
RMMSHIM_API void *rmmshim_torch_alloc(ssize_t size, int device, void *stream);
RMMSHIM_API void rmmshim_torch_free(void *ptr, ssize_t size, int device, void *stream);

/** Notes that the block is used on other streams too (Tensor.record_stream). After its free it is
 * handed out again only when all work of its context is done, not only that of one stream. For
 * set_record_stream_fn of PyTorch's allocator object; a program that does not set it must not use
 * record_stream. */
RMMSHIM_API void rmmshim_torch_record_stream(void *ptr, void *stream);

#ifdef __cplusplus
}
#endif

#endif
