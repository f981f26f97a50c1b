/* SPDX-License-Identifier: Apache-2.0 */
/* Memory resources: the interface all of them share, and the descriptor each file defines.
 *
 * A stack is a tree of memory resources; a leaf takes memory from the driver, an adaptor or an
 * allocator takes it from its upstream.  There is one stack per context and kind of memory.
 *
 * To add a resource: one file that defines `const struct rs_mr_descriptor rs_mr_descriptor_<name>`,
 * and its name in src/resource/meson.build.  Parser, help, the manual's tables and the contract
 * test take it from there. */
#pragma once

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/option.h"
#include "driver/cuda.h"
#include "heap/allocation.h"
#include "ledger/account.h"
#include "resource/resource_list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_mr;
struct rs_report;

/* What was quarantined. */
enum rs_readiness {
    RS_READY_NOTHING, /* nothing is, or it cannot be made ready now */
    RS_READY_PENDING, /* the GPU is not done with it */
    RS_READY_SOME,    /* something became ready, or came back from where it was kept */
};

/* The program synchronises: before the driver's call, and when that is over. */
enum rs_synchronise {
    RS_SYNCHRONISE_BEGIN,
    RS_SYNCHRONISE_END_SOME, /* a stream, or an event */
    RS_SYNCHRONISE_END_ALL   /* all work of a context */
};

/* How far an allocation goes.  Where its effort does not reach it is answered with
 * CUDA_ERROR_NOT_READY: more effort may serve it.  An adaptor passes the effort on to its upstream
 * as it is. */
enum rs_effort {
    /* All it takes: upstream may be asked for more than this request needs, and whoever keeps
     * memory without use gives it back before the request is refused. */
    RS_EFFORT_FULL = 0,
    /* As RS_EFFORT_FULL, but upstream is asked for no more than this request needs: the caller
     * grows past its allowance. */
    RS_EFFORT_LITTLE = 1 << 0,
    /* As RS_EFFORT_FULL, but no lesser upstream stands in: the caller may yet make room in the
     * better one by a short wait. */
    RS_EFFORT_BEST = 1 << 1,
    /* Or-ed to one of these three: the caller can do without the memory or with less of it, so that
     * nothing is reclaimed for it, and a refusal does not mean that memory is short. */
    RS_EFFORT_AHEAD = 1 << 2,
    /* Only from memory that is held already, and not from a block that is better left whole for
     * another request: the caller will make more effort. */
    RS_EFFORT_HELD = 1 << 3,
    /* As RS_EFFORT_HELD, but from any block, unless the request is huge and a growth would leave a
     * much larger block whole. */
    RS_EFFORT_HELD_GOOD = RS_EFFORT_HELD | 1 << 4,
    /* As RS_EFFORT_HELD, but from any block: the caller may not grow instead. */
    RS_EFFORT_HELD_ANY = RS_EFFORT_HELD_GOOD | 1 << 5,
};

/* What is held already serves it, or nothing. */
static inline bool rs_effort_is_held(enum rs_effort effort)
{
    return effort & RS_EFFORT_HELD;
}

/* A block that is better left to others will do. */
static inline bool rs_effort_takes_any(enum rs_effort effort)
{
    return effort & RS_EFFORT_HELD_GOOD & ~RS_EFFORT_HELD;
}

/* The caller can have a growth instead. */
static inline bool rs_effort_may_grow(enum rs_effort effort)
{
    return effort != RS_EFFORT_HELD_ANY;
}

static inline bool rs_effort_is_ahead(enum rs_effort effort)
{
    return effort & RS_EFFORT_AHEAD;
}

/* The effort without some of what it says. */
static inline enum rs_effort rs_effort_without(enum rs_effort effort, enum rs_effort part)
{
    return (enum rs_effort)(effort & ~(unsigned)part);
}

/* A result as the effort has it: where only held memory was asked for, no memory (not even for a
 * record) is CUDA_ERROR_NOT_READY. */
static inline CUresult rs_effort_result(enum rs_effort effort, CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY && rs_effort_is_held(effort) ? CUDA_ERROR_NOT_READY
                                                                           : result;
}

/* What a trim leaves. */
struct rs_trim {
    size_t keep_bytes;   /* of wholly free upstream blocks so much stays with each resource */
    unsigned initial_of; /* of these memories, bits 1 << rs_memory, goes even what a resource keeps
                            by its own settings (a pool's initial size) */
    bool is_reclaim;     /* somebody is out of memory: a call that is under way, which may be this
                            very thread's, is not waited for */
};

struct rs_mr_ops {
    /* Allocates size_bytes (> 0), aligned to RS_BLOCK_ALIGNMENT, usable at once on any stream when
     * `stream` is the NULL stream.  CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_READY where the effort
     * does not suffice, or the driver's error otherwise; *out is untouched then.  Thread safe. */
    CUresult (*allocate)(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                         enum rs_effort effort, struct rs_allocation *out);

    /* Gives an allocation back.  Needs no host memory.  An error means that it is still allocated.
     * Unless the descriptor says that frees wait, the caller has made sure that no work uses the
     * block any more.  Thread safe. */
    CUresult (*deallocate)(struct rs_mr *mr, const struct rs_allocation *allocation,
                           CUstream stream);

    /* Frees the resource itself, not its upstream (rs_mr_destroy does).  With memory_is_gone the
     * memory died with its context and no call is made; without, what is held upstream goes back.
     */
    void (*destroy)(struct rs_mr *mr, bool memory_is_gone);

    /* Optional; rs_mr_init fills in what is NULL. */

    /* The context has ended, and with it all work and what dies with a context: gives back to the
     * driver what does not, at once (destroy, with memory_is_gone, comes much later).  No context
     * need be current.  A thread may still be inside another op: what it takes from now on goes
     * back too, allocations fail from here on, and deallocations do nothing.  Called once, never
     * at process exit.  Default: nothing. */
    void (*context_ended)(struct rs_mr *mr);

    /* Another device may reach the context's memory from now on, or no longer (place->peers says so
     * already): tells the driver about all memory that is held.  Memory taken later follows
     * place->peers by itself.  An error may leave a part of it told.  Default: nothing, for
     * cuMemAlloc's memory, which the driver sees to. */
    CUresult (*access_changed)(struct rs_mr *mr, CUdevice peer, bool allowed);

    /* True when deallocate on a stream waits for no work but that stream's.  Default: false. */
    bool (*deallocates_in_order)(struct rs_mr *mr);

    /* Gives wholly free upstream blocks back, but for what `trim` leaves, and has the upstreams do
     * the same.  Returns the bytes given back.  Default: asks the upstreams. */
    size_t (*trim)(struct rs_mr *mr, const struct rs_trim *trim);

    /* Makes quarantined memory ready for any request; where the GPU is not done with it, waits up
     * to wait_ns for the oldest.  Thread safe.  Default: asks the upstreams. */
    enum rs_readiness (*make_ready)(struct rs_mr *mr, uint64_t wait_ns);

    /* Changes with each block that enters or leaves quarantine: a refusal in between may be stale.
     * Default: the sum of the upstreams'. */
    uint64_t (*moves)(struct rs_mr *mr);

    /* Bytes beyond what is to stay held while the program synchronises (a release threshold), used
     * or not, which would go back if they were given back here.  Default: the upstreams'. */
    size_t (*excess_bytes)(struct rs_mr *mr);

    /* Around the program's synchronisation: what is ready then goes upstream as far as there is an
     * excess, and that back to the driver.  Waits for no work of the program's.  Default: asks the
     * upstreams. */
    void (*synchronise)(struct rs_mr *mr, enum rs_synchronise when);

    /* Bytes held from upstream that are not allocated to anybody.  Default: 0 (the upstream's own
     * are asked for separately). */
    size_t (*idle_bytes)(struct rs_mr *mr);

    /* Bytes that this resource may still take from upstream by its own settings.  Default:
     * SIZE_MAX. */
    size_t (*growable_bytes)(struct rs_mr *mr);

    /* How many blocks these idle bytes are in, as this resource keeps them.  Default: 0. */
    size_t (*free_blocks)(struct rs_mr *mr);

    /* Adds this resource's counters.  Default: none. */
    void (*report)(struct rs_mr *mr, struct rs_report *report);

    /* True when all invariants hold; walks everything.  Default: true. */
    bool (*check)(struct rs_mr *mr);
};

enum { RS_MR_UPSTREAMS_MAX = 8 };

/* First member of every resource. */
struct rs_mr {
    struct rs_mr_ops ops;
    const struct rs_mr_descriptor *descriptor;
    struct rs_mr *upstream[RS_MR_UPSTREAMS_MAX];
    unsigned memories;  /* that the leaves beneath are counted as: bits 1 << rs_memory */
    bool keeps_holders; /* what is deallocated here may keep its holder's record */
    bool has_threshold; /* here or beneath may be an excess */
};

struct rs_own_stream;
struct rs_sentinel;

/* Where a stack stands.  Outlives it. */
struct rs_environment {
    CUdevice device;
    CUcontext context;
    struct rs_sentinel *sentinel;     /* for waiting as cudaFree does */
    struct rs_own_stream *own_stream; /* for our own stream-ordered calls (driver/own_stream.h) */
    struct rs_account *account;       /* of the context: every byte taken from the driver */
    const _Atomic uint64_t *peers;    /* other devices that may reach the context's memory, a bit
                                         each (cuCtxEnablePeerAccess).  NULL: none */

    /* Has all stacks of the device give back what they hold and nobody uses, before a request is
     * out of memory; may_wait: also what is quarantined, for as long as the request's patience
     * lasts.  True when another try may succeed.  May be NULL.  No lock may be held. */
    bool (*reclaim)(const struct rs_environment *environment, const struct rs_refusal *refusal,
                    bool may_wait);

    size_t total_bytes;                       /* of device memory */
    size_t free_bytes;                        /* when the stack was made */
    size_t host_total_bytes, host_free_bytes; /* the same of the host's memory, where not all is
                                                 the device's */
    unsigned host_flags;  /* of pinned memory: CU_MEMHOSTALLOC_...; that the device sees it where it
                             stands in for device memory */
    bool first_on_device; /* this context takes the initial pool */
    /* A block goes upstream, or to another holder: its record is no longer kept.  NULL where no
     * holder keeps records. */
    void (*forget_holder)(const struct rs_environment *environment, void *holder);
    bool frees_are_ready; /* no work uses what a leaf gets back: `reuse` is above */
};

static inline uint64_t rs_environment_peers(const struct rs_environment *environment)
{
    return environment->peers ? atomic_load(environment->peers) : 0;
}

/* Of the memory that leaves are counted as, bits 1 << rs_memory: what was free of it when the stack
 * was made. */
static inline size_t rs_environment_free_bytes(const struct rs_environment *environment,
                                               unsigned memories)
{
    return memories == 1u << RS_MEMORY_HOST ? environment->host_free_bytes
                                            : environment->free_bytes;
}

/* The most that there may ever be of them; SIZE_MAX where it is not known. */
static inline size_t rs_environment_total_bytes(const struct rs_environment *environment,
                                                unsigned memories)
{
    size_t host_bytes = memories == 1u << RS_MEMORY_DEVICE ? 0 : environment->host_total_bytes;

    if (environment->total_bytes == 0 || (host_bytes == 0 && memories != 1u << RS_MEMORY_DEVICE))
        return SIZE_MAX;
    return environment->total_bytes + host_bytes;
}

enum rs_free_behaviour {
    RS_FREE_AS_UPSTREAM, /* adaptors that keep no memory */
    RS_FREE_WAITS,       /* returns when all work given to the context before is done */
    RS_FREE_AT_ONCE,     /* the memory may be handed out again at once: the caller must know */
};

struct rs_mr_descriptor {
    const char *name;
    const char *aliases[3];  /* RMM's names for it */
    const char *summary;     /* one clause */
    unsigned upstream_count; /* 0: a leaf; of two the second stands in for the first */
    const struct rs_mr_descriptor *branch; /* what more upstreams may be, each for requests of its
                                              own; NULL: there are none */
    enum rs_memory memory;                 /* of a leaf */
    bool overcommits; /* of a leaf: memory that is not used yet lies nowhere, so that there may be
                         more of it than the device or the host has */
    enum rs_free_behaviour frees;
    bool passes_allocations; /* an adaptor that hands allocations through as they are */
    bool dies_with_context;  /* leaves: a context's end frees the memory; context_ended does it
                                where this is false */
    size_t config_bytes;
    const struct rs_option *options; /* ended by RS_OPTION_END; never NULL */
    const char *unit_option; /* of what cuts blocks: the SIZE option whose value's multiples are
                                every block's address and room; NULL: there is none */
    bool keeps_blocks;       /* each of its blocks lies in an upstream block of its own */

    /* What a leaf with these settings is counted as; NULL: always as `memory`. */
    enum rs_memory (*counted_as)(const void *config);

    /* Checks what rows alone cannot say (maximum below initial): reports source and returns
     * false.  Sizes are resolved; called once at parse time when no percentage is involved, and
     * again when the stack is made.  place->total_bytes is 0 where not all beneath is device
     * memory: only that is bounded by the device.  May be NULL. */
    bool (*validate)(const void *config, const struct rs_environment *environment,
                     const struct rs_source *source, struct rs_diagnostics *diagnostics);

    /* Allocates the resource with its upstreams (0 for a leaf; where it may have branches there are
     * RS_MR_UPSTREAMS_MAX, NULL behind the last) and returns it in *out with at least the mandatory
     * ops set: use rs_mr_init.  0 or -errno.  `config` lives only during the call,
     * its text too. */
    int (*create)(const struct rs_environment *environment, const void *config,
                  struct rs_mr *const *upstream, struct rs_mr **out);
};

/* rs_mr_descriptor_cuda and so on. */
#define RS_MR_DECLARE(name) extern const struct rs_mr_descriptor rs_mr_descriptor_##name;
RS_MR_LIST(RS_MR_DECLARE)
#undef RS_MR_DECLARE

/* The table of all resources, NULL-terminated, in the order of src/resource/meson.build. */
extern const struct rs_mr_descriptor *const rs_mr_descriptors[];

/* Where RMM's ending of a class begins: PoolMemoryResource, pool_memory_resource,
 * LimitingResourceAdaptor, managed_memory; `end` where there is none. */
const char *rs_mr_word_end(const char *begin, const char *end);

/* The descriptor called [begin, end), by its name or one of RMM's; NULL when there is none. */
const struct rs_mr_descriptor *rs_mr_find(const char *begin, const char *end);

/* Initialises the base of a resource: copies the ops, fills in optional ones, sets the upstreams.
 * `ops` must have allocate, deallocate and destroy. */
void rs_mr_init(struct rs_mr *mr, const struct rs_mr_ops *ops,
                const struct rs_mr_descriptor *descriptor, struct rs_mr *const *upstream);

/* Destroys a whole stack from its top. */
void rs_mr_destroy(struct rs_mr *mr, bool memory_is_gone);

/* Defaults for adaptors: forward to upstream[0]. */
CUresult rs_mr_forward_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                enum rs_effort effort, struct rs_allocation *out);
CUresult rs_mr_forward_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                  CUstream stream);

/* excess_bytes of a resource that keeps what is given back to it. */
size_t rs_mr_no_excess_bytes(struct rs_mr *mr);

/* Callers use these, never mr->ops themselves. */
static inline CUresult rs_mr_allocate_with(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                           enum rs_effort effort, struct rs_allocation *out)
{
    return mr->ops.allocate(mr, size_bytes, stream, effort, out);
}

/* With the full effort. */
static inline CUresult rs_mr_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                      struct rs_allocation *out)
{
    return rs_mr_allocate_with(mr, size_bytes, stream, RS_EFFORT_FULL, out);
}

static inline bool rs_mr_deallocates_in_order(struct rs_mr *mr)
{
    return mr->ops.deallocates_in_order(mr);
}

static inline CUresult rs_mr_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                        CUstream stream)
{
    return mr->ops.deallocate(mr, allocation, stream);
}

/* The same for a free that waits: on return the driver knows nothing of the block any more, where
 * it is given back to the driver.  Only the driver's pools ask for it (leaf/async.c), so it is a
 * state of the thread: one more argument of deallocate would be set on the path of each cudaFree.
 */
CUresult rs_mr_deallocate_at_once(struct rs_mr *mr, const struct rs_allocation *allocation);

/* True inside rs_mr_deallocate_at_once: for a resource's deallocate. */
bool rs_mr_frees_at_once(void);

static inline size_t rs_mr_trim_with(struct rs_mr *mr, const struct rs_trim *trim)
{
    return mr->ops.trim(mr, trim);
}

/* Because somebody asks for it. */
static inline size_t rs_mr_trim(struct rs_mr *mr, size_t keep_bytes)
{
    return rs_mr_trim_with(mr, &(struct rs_trim){.keep_bytes = keep_bytes});
}

/* Because somebody is out of memory. */
static inline size_t rs_mr_trim_all(struct rs_mr *mr, unsigned initial_of)
{
    return rs_mr_trim_with(mr, &(struct rs_trim){.initial_of = initial_of, .is_reclaim = true});
}

/* For a resource's trim: what it keeps by its own settings has to go too. */
static inline bool rs_trim_takes_initial(const struct rs_trim *trim, const struct rs_mr *mr)
{
    return (trim->initial_of & mr->memories) != 0;
}

static inline enum rs_readiness rs_mr_make_ready(struct rs_mr *mr, uint64_t wait_ns)
{
    return mr->ops.make_ready(mr, wait_ns);
}

static inline size_t rs_mr_excess_bytes(struct rs_mr *mr)
{
    return mr->ops.excess_bytes(mr);
}

static inline void rs_mr_synchronise(struct rs_mr *mr, enum rs_synchronise when)
{
    mr->ops.synchronise(mr, when);
}

static inline uint64_t rs_mr_moves(struct rs_mr *mr)
{
    return mr->ops.moves(mr);
}

/* Of the whole stack below and including mr. */
void rs_mr_context_ended(struct rs_mr *mr);
CUresult rs_mr_access_changed(struct rs_mr *mr, CUdevice peer, bool allowed);
size_t rs_mr_idle_bytes(struct rs_mr *mr);

/* The same without what only stands in for the first of two upstreams. */
size_t rs_mr_idle_bytes_best(struct rs_mr *mr);

/* The same of the resources over any of these memories, bits 1 << rs_memory. */
size_t rs_mr_idle_bytes_of(struct rs_mr *mr, unsigned memories);

/* What the first of each two upstreams may still take, at the least; of branches the one that may
 * take most. */
size_t rs_mr_growable_bytes_best(struct rs_mr *mr);

/* What each two upstreams may still take together, at the most. */
size_t rs_mr_growable_bytes(struct rs_mr *mr);

/* How many blocks the idle bytes are in. */
size_t rs_mr_free_blocks(struct rs_mr *mr);

void rs_mr_report(struct rs_mr *mr, struct rs_report *report);
bool rs_mr_check(struct rs_mr *mr);
