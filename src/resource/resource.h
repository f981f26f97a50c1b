/* SPDX-License-Identifier: Apache-2.0 */
/* Memory resources: the interface that all of them share, and the descriptor and the
 * class that each file defines.
 *
 * A stack is a tree of memory resources.  A leaf takes memory from the driver; an adaptor or an
 * allocator takes it from its upstream.  There is one stack per context and kind of memory.
 *
 * To add a resource, write one file that defines `const struct rs_mr_descriptor
 * rs_mr_descriptor_<name>` and `const struct rs_mr_class rs_mr_class_<name>`, and add its name to
 * src/resource/meson.build.  Parser, help, the manual's tables and the contract test read the
 * descriptor. */
#pragma once

#include "base/check.h"
#include "base/lock.h"
#include "base/option.h"
#include "driver/cuda.h"
#include "ledger/account.h"
#include "resource/block.h"
#include "resource/resource_list.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rs_mr;
struct rs_report;
struct rs_counter_row;

/* What rs_mr_make_ready achieved for the blocks in quarantine.  The values are in order: a higher
 * one means that more was achieved. */
enum rs_readiness {
    RS_READY_NOTHING, /* no block is in quarantine, or none of them can become ready now */
    RS_READY_PENDING, /* the GPU still works on the blocks in quarantine */
    RS_READY_SOME,    /* at least one block became ready or went back upstream */
};

/* The moment at which the op `synchronise` is called: before or after a driver call in which the
 * program waits for the GPU, or before a driver call after which no fence can be recorded for a
 * while. */
enum rs_synchronise {
    RS_SYNCHRONISE_BEGIN,
    RS_SYNCHRONISE_CAPTURE,  /* before a stream begins to capture */
    RS_SYNCHRONISE_END_SOME, /* after a wait for one stream or one event */
    RS_SYNCHRONISE_END_ALL   /* after a wait for all work of a context */
};

/* How much a resource may do to serve an allocation.  RS_EFFORT_FULL is everything; each bit below
 * rules something out, and bits may be combined.  If the rest does not suffice, the result is
 * CUDA_ERROR_NOT_READY: the same request with more effort may succeed.  An adaptor passes the
 * effort on to its upstream unchanged, except `fallback` and `headroom`, whose own rules change it.
 */
enum rs_effort {
    RS_EFFORT_FULL = 0,
    /* A resource asks its upstream for no more than this request needs, since the caller is about
     * to grow past its allowance. */
    RS_EFFORT_LITTLE = 1 << 0,
    /* No second upstream (slower memory) stands in for a full first one, since a short wait of the
     * caller may still make room in the first. */
    RS_EFFORT_BEST = 1 << 1,
    /* The request is refused without a reclaim of idle memory from other resources: the caller can
     * do without the memory, or with less, so a refusal does not mean that memory is short. */
    RS_EFFORT_AHEAD = 1 << 2,
    /* Held memory serves the request, or nothing does: the driver is not asked for memory. */
    RS_EFFORT_HELD = 1 << 3,
    /* A resource cuts any block that fits, also one that it would otherwise leave whole for larger
     * requests, since it must not grow for this request.
     */
    RS_EFFORT_CUT_ANY = 1 << 4,
};

/* True when only held memory may serve the request. */
static inline bool rs_effort_is_held(enum rs_effort effort)
{
    return effort & RS_EFFORT_HELD;
}

/* True when the caller can do without the memory, or with less of it. */
static inline bool rs_effort_is_ahead(enum rs_effort effort)
{
    return effort & RS_EFFORT_AHEAD;
}

/* Returns the result that a request with this effort must get: if only held memory may serve it,
 * CUDA_ERROR_OUT_OF_MEMORY (also for want of host memory for a record) becomes
 * CUDA_ERROR_NOT_READY. */
static inline CUresult rs_effort_result(enum rs_effort effort, CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY && rs_effort_is_held(effort) ? CUDA_ERROR_NOT_READY
                                                                           : result;
}

/* Converts the driver's result of a call that takes memory to one that a resource may return.  The
 * driver's own CUDA_ERROR_NOT_READY must not reach the caller, to whom it means: repeat with more
 * effort. */
static inline CUresult rs_effort_result_of_driver(CUresult result)
{
    return result == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* How much a trim gives back. */
struct rs_trim {
    size_t keep_bytes;   /* each resource keeps up to this much in wholly free upstream blocks */
    unsigned initial_of; /* bits 1 << rs_memory: resources over these kinds of memory also give back
                            what their settings have them keep (a pool's initial size) */
    bool is_reclaim;     /* the trim serves a request that is out of memory, and never waits; other
                            trims may wait for some milliseconds */
};

/* The operations of a resource. */
struct rs_mr_ops {
    /* Allocates size_bytes (> 0), aligned to RS_BLOCK_ALIGNMENT.  With the NULL stream the block is
     * usable on any stream at once.  Returns CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_READY if the
     * effort does not suffice, or the driver's error; *out is unchanged then.  Thread safe. */
    CUresult (*allocate)(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                         enum rs_effort effort, struct rs_allocation *out);

    /* Gives an allocation back.  Needs no host memory.  After an error the allocation is still
     * live. The caller has made sure that no work uses the block any more, unless the descriptor
     * says RS_FREE_WAITS.  Thread safe. */
    CUresult (*deallocate)(struct rs_mr *mr, const struct rs_allocation *allocation,
                           CUstream stream);

    /* The ops from here on are optional: NULL stands for the default. */

    /* Frees the resource itself, but not its upstream (rs_mr_destroy frees both).  With
     * memory_is_gone the memory died with its context, and the resource makes no driver call;
     * otherwise it gives back all memory that it holds from upstream.  Default: calls `end`, and
     * frees the structure that rs_mr_create made. */
    void (*destroy)(struct rs_mr *mr, bool memory_is_gone);

    /* Called by the default of `destroy`: gives back all memory, and destroys what the resource's
     * own fields hold.  Default: does nothing. */
    void (*end)(struct rs_mr *mr, bool memory_is_gone);

    /* Called when the context has ended, with its work and the memory that dies with it.  Gives the
     * memory that outlives a context back to the driver at once, since `destroy` with
     * memory_is_gone is called much later.  No context need be current.  Another thread may still
     * be inside another op; whatever memory that op takes is given back too.  From now on
     * allocations fail and deallocations do nothing.  Called once, never at process exit.  Default:
     * does nothing. */
    void (*context_ended)(struct rs_mr *mr);

    /* Called for a resource that was passed to rs_mr_add_unfinished: tries again to give its memory
     * back.  Returns true when no memory is left to give back.  Called by one thread at a time;
     * takes no lock that is held around a call of rs_mr_remove_unfinished or
     * rs_mr_retry_unfinished. */
    bool (*finish)(struct rs_mr *mr);

    /* Called when another device, `peer`, may access the context's memory from now on (`allowed`),
     * or no longer; environment->peers is changed already.  Tells the driver so for all memory that
     * is held.  Memory taken later follows environment->peers by itself.  After an error the change
     * may apply to a part of the memory only.  Default: does nothing, which is right for
     * cuMemAlloc's memory, as the driver itself gives peers access to it. */
    CUresult (*access_changed)(struct rs_mr *mr, CUdevice peer, bool allowed);

    /* True when a deallocate on a stream waits for no work of other streams.  Default: false. */
    bool (*deallocates_in_order)(struct rs_mr *mr);

    /* Gives wholly free upstream blocks back, except for the bytes that `trim` lets stay, and has
     * the upstreams do the same.  Returns the bytes given back.  Default: trims the upstreams. */
    size_t (*trim)(struct rs_mr *mr, const struct rs_trim *trim);

    /* Returns the held bytes, live or idle, beyond the release threshold.  Idle memory up to this
     * amount goes back to the driver when it is deallocated to this resource, or when the program
     * synchronises.  Default: the sum over the upstreams. */
    size_t (*excess_bytes)(struct rs_mr *mr);

    /* Called around a synchronisation of the program, and before a stream begins to capture.  After
     * a synchronisation, if there are excess bytes, it gives that many bytes of ready blocks
     * upstream, and from there to the driver.  Waits for no work of the program.  Default: calls
     * the upstreams. */
    void (*synchronise)(struct rs_mr *mr, enum rs_synchronise when);

    /* Returns the bytes that this resource holds from upstream and has not handed out.  Default: 0
     * (the caller asks each upstream for its own idle bytes). */
    size_t (*idle_bytes)(struct rs_mr *mr);

    /* Returns the bytes that this resource may still take from upstream by its own settings.
     * Default: SIZE_MAX. */
    size_t (*growable_bytes)(struct rs_mr *mr);

    /* Returns the number of free blocks in which the resource's idle bytes lie.  Default: 0. */
    size_t (*free_blocks)(struct rs_mr *mr);

    /* Adds this resource's counters to the report.  Default: adds `counters`, under mr->lock. */
    void (*report)(struct rs_mr *mr, struct rs_report *report);
    const struct rs_counter_row *counters; /* ends with RS_COUNTER_END; NULL: none */

    /* True when all invariants hold.  Walks every structure of the resource.  Default: asks
     * is_sound, under mr->lock. */
    bool (*check)(struct rs_mr *mr);
    bool (*is_sound)(struct rs_mr *mr); /* NULL: counts as always sound */
};

enum { RS_MR_UPSTREAMS_MAX = 8 };

/* The first member of every resource. */
struct rs_mr {
    struct rs_mr_ops ops;
    const struct rs_mr_descriptor *descriptor;
    const struct rs_environment *environment; /* set by rs_mr_create */
    struct rs_mr *next_unfinished;
    struct rs_mr *upstream[RS_MR_UPSTREAMS_MAX];
    unsigned memories;  /* bits 1 << rs_memory: the kinds of memory that the leaves beneath are
                           counted as */
    bool has_threshold; /* this resource or one beneath may have excess bytes (a release threshold)
                         */
    struct rs_mutex lock; /* protects the resource's own fields, if it has any to protect; never
                             held around an upstream call */
};

/* Converts mr to the resource, of this type, whose first member it is. */
#define RS_MR_AS(type, mr) RS_CONTAINER_OF(mr, struct type, base)

struct rs_own_stream;
struct rs_sentinel;

/* The device and context of a stack, and the services it uses.  Outlives the stack. */
struct rs_environment {
    CUdevice device;
    unsigned char host_flags; /* CU_MEMHOSTALLOC_... for pinned memory: device-mapped where pinned
                                 memory stands in for device memory */
    bool first_on_device; /* this stack takes the initial sizes of its resources when it is made;
                             only one context of a device does so */
    bool frees_are_ready; /* `reuse` is above every leaf: no work uses a block that a leaf gets back
                           */
    CUcontext context;
    struct rs_sentinel *sentinel; /* waits for all work of the context, as cudaFree does */
    /* The stream of our own stream-ordered calls (driver/stream.h). */
    struct rs_own_stream *own_stream;
    /* The context's account, which counts every byte taken from the driver. */
    struct rs_account *account;
    const _Atomic uint64_t *peers; /* one bit per other device that may reach the context's memory
                                      (cuCtxEnablePeerAccess). NULL: none */

    /* Called before a request is refused for want of memory: has the stacks of the device (for host
     * memory: of all devices) give idle memory back.  With may_wait it also waits for memory in
     * quarantine, as long as the request's patience lasts, and asks other processes for theirs.
     * True when another try may succeed.  May be NULL.  The caller holds no lock. */
    bool (*reclaim)(const struct rs_environment *environment, const struct rs_refusal *refusal,
                    bool may_wait);

    size_t total_bytes;                       /* the device's memory */
    size_t free_bytes;                        /* free device memory when the stack was made */
    size_t host_total_bytes, host_free_bytes; /* the host's memory in total, and free when the stack
                                                 was made; 0 where all leaves are device memory */
    /* Returns false when the driver has taken back the memory at `address`, as it does when the
     * context ends.  With address 0 it returns false when the driver may have taken back any of the
     * context's memory.  NULL: the driver never takes memory back. */
    bool (*has_memory)(const struct rs_environment *environment, CUdeviceptr address);
    /* Called when a driver call shows that work of the context has failed (rs_is_fault).  May be
     * NULL.  The caller may hold any lock. */
    void (*note_fault)(const struct rs_environment *environment);
};

/* Called by a leaf that is out of memory: calls environment->reclaim, unless the effort says that
 * the caller can do without the memory.  True when another try may succeed.  The caller
 * holds no lock. */
bool rs_environment_reclaims(const struct rs_environment *environment,
                             const struct rs_refusal *refusal, enum rs_effort effort);

/* Returns one bit per other device that may reach the context's memory now. */
static inline uint64_t rs_environment_peers(const struct rs_environment *environment)
{
    return environment->peers ? atomic_load(environment->peers) : 0;
}

/* Returns the bytes that were free when the stack was made: the host's if `memories` (bits 1 <<
 * rs_memory) has host memory alone, else the device's. */
static inline size_t rs_environment_free_bytes(const struct rs_environment *environment,
                                               unsigned memories)
{
    return memories == 1u << RS_MEMORY_HOST ? environment->host_free_bytes
                                            : environment->free_bytes;
}

/* Returns a bound on the bytes that the kinds of memory in `memories` (bits 1 << rs_memory) can
 * have: the device's memory, and also the host's unless `memories` has device memory alone.
 * SIZE_MAX if one of the two is unknown. */
static inline size_t rs_environment_total_bytes(const struct rs_environment *environment,
                                                unsigned memories)
{
    size_t host_bytes = memories == 1u << RS_MEMORY_DEVICE ? 0 : environment->host_total_bytes;

    if (environment->total_bytes == 0 || (host_bytes == 0 && memories != 1u << RS_MEMORY_DEVICE))
        return SIZE_MAX;
    return environment->total_bytes + host_bytes;
}

/* When the memory of a freed block may be handed out again. */
enum rs_free_behaviour {
    RS_FREE_AS_UPSTREAM, /* whenever its upstream allows: the resource is an adaptor that keeps no
                            memory */
    RS_FREE_WAITS,   /* only after all earlier work of the context: the free waits, or the block is
                        kept back */
    RS_FREE_AT_ONCE, /* at once: the caller makes sure that no work uses the block */
};

/* What a `validate` needs beside the option values: the device for which they are checked, and
 * where errors are reported. */
struct rs_validation {
    const struct rs_environment *environment; /* NULL at parse time */
    const struct rs_source *source;
    struct rs_diagnostics *diagnostics;
};

/* For a `validate`: reports what is wrong with the option values, and has the value false. */
#define RS_REFUSE(of, ...) rs_diagnose((of)->diagnostics, (of)->source, NULL, __VA_ARGS__)

/* The description of a kind of resource: its names, its options and its behaviour. */
struct rs_mr_descriptor {
    const char *name;
    const char *aliases[3];  /* other names, RMM's among them */
    const char *summary;     /* one clause, for help and manual */
    unsigned upstream_count; /* 0: a leaf. 2: the second upstream stands in for the first */
    const struct rs_mr_descriptor *branch; /* the descriptor of further upstreams, each for requests
                                              of its own; NULL: no further upstreams */
    enum rs_memory memory;                 /* of a leaf: the kind of its memory */
    bool overcommits; /* of a leaf: pages exist only once they are used, so allocations may exceed
                         the memory of device and host */
    enum rs_free_behaviour frees;
    bool dies_with_context; /* of a leaf: the context's end frees the memory; where this is false,
                               the op context_ended frees it */
    size_t config_bytes;
    const struct rs_option *options; /* ends with RS_OPTION_END; never NULL */
    /* For a resource that cuts blocks: the name of the RS_OPTION_SIZE option that sets its unit.
     * Every block's address and rounded size are multiples of that option's value.  NULL: there is
     * none. */
    const char *unit_option;
    bool keeps_blocks; /* each block lies in an upstream block of its own */

    /* The kind of memory that a leaf with these settings is counted as; NULL: always `memory`. */
    enum rs_memory (*counted_as)(const void *config);

    /* Checks option values against each other (a maximum below the initial size): reports `source`
     * and returns false.  Sizes are resolved.  Called once at parse time when no percentage is
     * involved, and again when the stack is made.  environment->total_bytes is 0 unless all memory
     * beneath is device memory, the only kind that the device bounds.  May be NULL. */
    bool (*validate)(const void *config, const struct rs_validation *of);
};

/* What makes a resource and what it does.  It stands beside the descriptor and not in it, so that a
 * program that only parses and describes expressions, as rmmshim-tables does, links none of it. */
struct rs_mr_class {
    /* The structure of the resource and its ops, for rs_mr_create, which copies `config` to
     * config_offset (0: nowhere) and calls `init` with all other fields zero. `init` returns 0, or
     * -errno, after which the resource is destroyed; `init` may be NULL. `config` and its text live
     * only during the call. */
    size_t bytes, config_offset;
    const struct rs_mr_ops *ops;
    int (*init)(struct rs_mr *mr, const void *config);
};

/* Defines a class; `function` is its init, or NULL. */
#define RS_MR_CLASS(name, type, operations, function)                                              \
    const struct rs_mr_class rs_mr_class_##name = {                                                \
        .bytes = sizeof(type), .ops = &(operations), .init = (function)}

/* Does the same for a structure that keeps the resource's configuration, without texts, in `set`.
 */
#define RS_MR_CLASS_WITH_SET(name, type, operations, function)                                     \
    const struct rs_mr_class rs_mr_class_##name = {.bytes = sizeof(type),                          \
                                                   .config_offset = offsetof(type, set),           \
                                                   .ops = &(operations),                           \
                                                   .init = (function)}

/* Declares rs_mr_descriptor_cuda, rs_mr_class_cuda and all others. */
#define RS_MR_DECLARE(name)                                                                        \
    extern const struct rs_mr_descriptor rs_mr_descriptor_##name;                                  \
    extern const struct rs_mr_class rs_mr_class_##name;
RS_MR_LIST(RS_MR_DECLARE)
#undef RS_MR_DECLARE

/* The table of all resources, NULL-terminated, in the order of src/resource/meson.build. */
extern const struct rs_mr_descriptor *const rs_mr_descriptors[];

/* Returns the place in the word [begin, end) at which an ending of RMM's class names begins
 * (Pool|MemoryResource, pool|_memory_resource, Limiting|ResourceAdaptor, managed|_memory), or `end`
 * if the word has no such ending. */
const char *rs_mr_word_end(const char *begin, const char *end);

/* Returns the descriptor whose name or alias is the text [begin, end), or NULL.  Case, the ending
 * that rs_mr_word_end finds, and each '_' that the text lacks are ignored. */
const struct rs_mr_descriptor *rs_mr_find(const char *begin, const char *end);

/* Initialises the base of a resource: copies the ops, fills in the defaults of some that are NULL
 * (the functions below handle the others), and sets the upstreams.  `ops` must have allocate and
 * deallocate. */
void rs_mr_init(struct rs_mr *mr, const struct rs_mr_ops *ops,
                const struct rs_mr_descriptor *descriptor, struct rs_mr *const *upstream);

/* True when `bytes` fit into the device's memory, or its size is not known.  False after a
 * diagnostic, in which `what` names the bytes. */
bool rs_mr_fits_device(const struct rs_validation *of, const char *what, size_t bytes);

/* Makes a resource of this descriptor over `upstream`, which is NULL for a leaf; with branches it
 * has RS_MR_UPSTREAMS_MAX entries, NULL behind the last.  Returns 0 or -errno. */
int rs_mr_create(const struct rs_mr_descriptor *descriptor,
                 const struct rs_environment *environment, const void *config,
                 struct rs_mr *const *upstream, struct rs_mr **out);

/* Destroys a whole stack from its top down.  mr: may be NULL. */
void rs_mr_destroy(struct rs_mr *mr, bool memory_is_gone);

/* The list of leaves whose memory outlived their context and could not be given back to the driver
 * at its end. `finish` of each of them is called again when the next leaf whose memory can outlive
 * its context is made, and when the device is trimmed.  A leaf is added when its context has ended
 * and no thread is inside it.  Removing a leaf that is not in the list does nothing. */
void rs_mr_add_unfinished(struct rs_mr *mr);
void rs_mr_remove_unfinished(struct rs_mr *mr);
void rs_mr_retry_unfinished(void);

/* An excess_bytes op that returns 0, for a resource that keeps the blocks freed to it whatever the
 * release threshold beneath it. */
size_t rs_mr_no_excess_bytes(struct rs_mr *mr);

/* Callers use the functions below, never mr->ops itself. */
static inline CUresult rs_mr_allocate_with(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                           enum rs_effort effort, struct rs_allocation *out)
{
    return mr->ops.allocate(mr, size_bytes, stream, effort, out);
}

/* Allocates with RS_EFFORT_FULL. */
static inline CUresult rs_mr_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                      struct rs_allocation *out)
{
    return rs_mr_allocate_with(mr, size_bytes, stream, RS_EFFORT_FULL, out);
}

static inline bool rs_mr_deallocates_in_order(struct rs_mr *mr)
{
    return mr->ops.deallocates_in_order && mr->ops.deallocates_in_order(mr);
}

static inline CUresult rs_mr_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                        CUstream stream)
{
    return mr->ops.deallocate(mr, allocation, stream);
}

/* Deallocates for a free that waits: on return the driver no longer counts a block that went back
 * to it.  Only leaves over the driver's pools make a difference (leaf/async.c), so this is a state
 * of the thread: one more argument of `deallocate` would cost an instruction in each cudaFree. */
CUresult rs_mr_deallocate_at_once(struct rs_mr *mr, const struct rs_allocation *allocation);

/* True inside rs_mr_deallocate_at_once.  For the deallocate op of a resource. */
bool rs_mr_frees_at_once(void);

size_t rs_mr_trim_with(struct rs_mr *mr, const struct rs_trim *trim);

/* Trims because the program or a tool asks for it. */
static inline size_t rs_mr_trim(struct rs_mr *mr, size_t keep_bytes)
{
    return rs_mr_trim_with(mr, &(struct rs_trim){.keep_bytes = keep_bytes});
}

/* Trims because a request is out of memory. */
static inline size_t rs_mr_trim_all(struct rs_mr *mr, unsigned initial_of)
{
    return rs_mr_trim_with(mr, &(struct rs_trim){.initial_of = initial_of, .is_reclaim = true});
}

/* Called by a trim op: true when it must also give back the memory that the resource's settings
 * have it keep. */
static inline bool rs_trim_takes_initial(const struct rs_trim *trim, const struct rs_mr *mr)
{
    return (trim->initial_of & mr->memories) != 0;
}

size_t rs_mr_excess_bytes(struct rs_mr *mr);

void rs_mr_synchronise(struct rs_mr *mr, enum rs_synchronise when);

/* The next two functions ask each `reuse` of the stack, the only resource that has a quarantine.
 * reuse/allocation.c defines them. */

/* Makes blocks in quarantine ready for any request.  If the GPU is not done with any, waits up to
 * wait_ns for the oldest ones.  Thread safe. */
enum rs_readiness rs_mr_make_ready(struct rs_mr *mr, uint64_t wait_ns);

/* Returns a number that changes with each block that enters or leaves quarantine.  If the number
 * changed during a request, the request's refusal may be stale. */
uint64_t rs_mr_progress(struct rs_mr *mr);

/* The next functions call the op of `mr` and of every resource below it.  rs_mr_idle_bytes returns
 * the sum; rs_mr_access_changed stops at the first error, and returns it. */
void rs_mr_context_ended(struct rs_mr *mr);
CUresult rs_mr_access_changed(struct rs_mr *mr, CUdevice peer, bool allowed);
size_t rs_mr_idle_bytes(struct rs_mr *mr);

/* Returns rs_mr_idle_bytes without second upstreams that only stand in for the first. */
size_t rs_mr_idle_bytes_best(struct rs_mr *mr);

/* Returns rs_mr_idle_bytes of the resources over any of these memories (bits 1 << rs_memory). */
size_t rs_mr_idle_bytes_of(struct rs_mr *mr, unsigned memories);

/* Returns the bytes that the stack may still take through first upstreams alone: the least
 * growable_bytes on that path.  With branches, the path counts on which this number is largest. */
size_t rs_mr_growable_bytes_best(struct rs_mr *mr);

/* Returns the bytes that the stack may still take; several upstreams of one resource add up. */
size_t rs_mr_growable_bytes(struct rs_mr *mr);

/* Returns the number of free blocks in the stack. */
size_t rs_mr_free_blocks(struct rs_mr *mr);

void rs_mr_report(struct rs_mr *mr, struct rs_report *report);
bool rs_mr_check(struct rs_mr *mr);
