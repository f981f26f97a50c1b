/* SPDX-License-Identifier: Apache-2.0 */
/* Memory resources: the interface that all of them share, and the descriptor and the class that
 * each kind of resource defines.
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

/* What rs_mr_make_ready achieved for the blocks in quarantine: freed blocks that GPU work may still
 * use, kept back by `reuse`.  A higher value means that more was achieved. */
enum rs_readiness {
    RS_READY_NOTHING, /* no block is in quarantine, or none of them can become ready now */
    RS_READY_PENDING, /* the GPU still works on the blocks in quarantine */
    RS_READY_SOME,    /* at least one block became ready or went back upstream */
};

/* The moment at which the op `synchronise` is called. */
enum rs_synchronise {
    RS_SYNCHRONISE_BEGIN,    /* before the program waits for the GPU */
    RS_SYNCHRONISE_CAPTURE,  /* before a stream begins to capture: until the capture ends, no fence
                                can be recorded */
    RS_SYNCHRONISE_END_SOME, /* after a wait for one stream or one event, or for another context */
    RS_SYNCHRONISE_END_ALL   /* after a wait for all work of the resource's context */
};

/* How much a resource may do to serve an allocation.  RS_EFFORT_FULL allows everything.  The bits
 * below change that, and may be combined.  CUDA_ERROR_NOT_READY means that the effort does not
 * suffice: the same request with more effort may succeed.  Adaptors pass the effort on to their
 * upstream unchanged, except for `fallback` and `headroom`, which have rules of their own. */
enum rs_effort {
    RS_EFFORT_FULL = 0,
    /* A resource asks its upstream for no more than this request needs.  A caller sets this bit
     * when it is about to hold more than its allowance. */
    RS_EFFORT_LITTLE = 1 << 0,
    /* Only the first upstream of `fallback` may serve the request.  The caller can wait a short
     * time for room there, which is better than the slower memory of the second upstream. */
    RS_EFFORT_BEST = 1 << 1,
    /* The request is refused without a reclaim of idle memory from other resources, since the
     * caller can do without the memory, or with less of it. */
    RS_EFFORT_AHEAD = 1 << 2,
    /* Only memory that the stack already holds may serve the request: the driver is not asked. */
    RS_EFFORT_HELD = 1 << 3,
    /* A resource cuts any block that fits, even one that it would otherwise leave whole for larger
     * requests. */
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

/* Returns the result that a request with this effort must get.  If only held memory may serve it,
 * CUDA_ERROR_OUT_OF_MEMORY becomes CUDA_ERROR_NOT_READY; else the result stays as it is. */
static inline CUresult rs_effort_result(enum rs_effort effort, CUresult result)
{
    return result == CUDA_ERROR_OUT_OF_MEMORY && rs_effort_is_held(effort) ? CUDA_ERROR_NOT_READY
                                                                           : result;
}

/* Converts the result of a driver call that takes memory to one that a resource may return.  The
 * driver's CUDA_ERROR_NOT_READY becomes CUDA_ERROR_OUT_OF_MEMORY: a caller would take it as advice
 * to repeat the request with more effort. */
static inline CUresult rs_effort_result_of_driver(CUresult result)
{
    return result == CUDA_ERROR_NOT_READY ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* How much a trim gives back. */
struct rs_trim {
    size_t keep_bytes;   /* each resource keeps up to this much in wholly free upstream blocks */
    unsigned initial_of; /* bits 1 << rs_memory: resources over these kinds of memory also give back
                            their initial size */
    bool is_reclaim;     /* the trim serves a request that is out of memory, so `reuse` does not
                            wait for freed blocks; in other trims it waits for up to 20 ms */
};

/* The operations of a resource. */
struct rs_mr_ops {
    /* Allocates size_bytes (> 0), aligned to RS_BLOCK_ALIGNMENT.  With the NULL stream the block is
     * usable on any stream at once.  Returns CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_NOT_READY if the
     * effort does not suffice, or the driver's error; *out is unchanged then.  Thread safe. */
    CUresult (*allocate)(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                         enum rs_effort effort, struct rs_allocation *out);

    /* Gives an allocation back.  Needs no host memory.  After an error the allocation is still
     * live.  Unless the descriptor says RS_FREE_WAITS, the caller must make sure that no work uses
     * the block any more.  Thread safe. */
    CUresult (*deallocate)(struct rs_mr *mr, const struct rs_allocation *allocation,
                           CUstream stream);

    /* The ops from here on are optional: NULL stands for the default. */

    /* Frees the resource itself, but not its upstream (rs_mr_destroy frees both).  Gives back all
     * memory that it holds from upstream.  memory_is_gone: that memory died with its context, so
     * nothing is given back, and no driver call is made.  Default: calls `end`, and frees the
     * structure that rs_mr_create made. */
    void (*destroy)(struct rs_mr *mr, bool memory_is_gone);

    /* Called by the default of `destroy`: gives back all memory as described there, and destroys
     * what the resource's own fields hold.  Default: does nothing. */
    void (*end)(struct rs_mr *mr, bool memory_is_gone);

    /* Called when the context has ended, and its work with it.  Gives memory that outlives a
     * context back to the driver at once, since `destroy` is called much later.  From now on
     * allocations fail and deallocations do nothing.  Another thread may still be inside another
     * op of the resource: the memory that this op takes is given back too.  No context need be
     * current.  Called once, never at process exit.  Default: does nothing. */
    void (*context_ended)(struct rs_mr *mr);

    /* Called for a resource that was passed to rs_mr_add_unfinished: tries again to give its memory
     * back.  Returns true when no memory is left to give back.  Called by one thread at a time,
     * under the lock of the list of unfinished resources. */
    bool (*finish)(struct rs_mr *mr);

    /* Gives another device, `peer`, access to all memory that is held, or takes the access away
     * (`allowed` false).  Called after environment->peers has changed, which memory taken later
     * follows by itself.  After an error the change may apply to a part of the memory only.
     * Default: does nothing, which is right for cuMemAlloc's memory, as the driver itself gives
     * peers access to it. */
    CUresult (*access_changed)(struct rs_mr *mr, CUdevice peer, bool allowed);

    /* True when a deallocate on a stream waits for no work of other streams.  Default: false. */
    bool (*deallocates_in_order)(struct rs_mr *mr);

    /* Gives wholly free upstream blocks back, except for the bytes that `trim` says to keep, and
     * trims the upstreams.  Returns the bytes given back.  Default: trims the upstreams. */
    size_t (*trim)(struct rs_mr *mr, const struct rs_trim *trim);

    /* Returns by how many bytes the held memory, live or idle, exceeds the release threshold.  So
     * much idle memory may go back to the driver when the program synchronises.  Default: the sum
     * over the upstreams. */
    size_t (*excess_bytes)(struct rs_mr *mr);

    /* Called before and after the program waits for the GPU, and before a stream begins to capture.
     * After the program's wait, a resource with excess bytes gives idle memory upstream, or to the
     * driver.  For this `reuse` may wait for its fences for up to 20 ms, also in contexts that the
     * program did not wait for.  Default: calls the upstreams. */
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
    unsigned memories;    /* bits 1 << rs_memory: the kinds of memory of the leaves beneath, as the
                             account counts them */
    bool has_threshold;   /* this resource or one beneath has a release threshold */
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
    unsigned char host_flags; /* CU_MEMHOSTALLOC_... for the pinned memory of this stack */
    bool first_on_device; /* this stack takes the initial sizes of its resources when it is made;
                             only one context of a device does so */
    bool frees_are_ready; /* `reuse` is above every leaf, so no work uses a block any more when it
                             comes back to a leaf */
    CUcontext context;
    struct rs_sentinel *sentinel; /* waits for all work of the context, as cudaFree does */
    /* The stream of our own stream-ordered calls (driver/stream.h). */
    struct rs_own_stream *own_stream;
    /* The context's account, which counts every byte taken from the driver. */
    struct rs_account *account;
    const _Atomic uint64_t *peers; /* one bit per other device that may reach the context's memory
                                      (cuCtxEnablePeerAccess). NULL: none */

    /* Called before a request is refused for want of memory: has the stacks of the device (for host
     * memory: of all devices) give idle memory back.  may_wait: it also asks other processes for
     * their idle memory, and waits for blocks in quarantine (rs_request_patience_ns).  True when
     * another try may succeed.  May be NULL.  The caller holds no lock. */
    bool (*reclaim)(const struct rs_environment *environment, const struct rs_refusal *refusal,
                    bool may_wait);

    size_t total_bytes;                       /* the device's memory */
    size_t free_bytes;                        /* free device memory when the stack was made */
    size_t host_total_bytes, host_free_bytes; /* the host's memory in total, and free when the stack
                                                 was made; 0 where all leaves are device memory */
    /* Returns false when the driver has taken the memory at `address` back, as it does when the
     * context ends.  For address 0: returns false when the driver may have taken back any memory of
     * the context.  NULL: the driver never takes memory back. */
    bool (*has_memory)(const struct rs_environment *environment, CUdeviceptr address);
    /* Called when a driver call shows that work of the context has failed (rs_is_fault).  May be
     * NULL.  The caller may hold any lock. */
    void (*note_fault)(const struct rs_environment *environment);
};

/* Called by a leaf that is out of memory: calls environment->reclaim, unless the effort has
 * RS_EFFORT_AHEAD.  True when another try may succeed.  The caller holds no lock. */
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

/* Returns the most bytes that memory of the kinds in `memories` (bits 1 << rs_memory) can have.
 * That is the device's memory if `memories` has device memory alone, else the device's and the
 * host's together.  Returns SIZE_MAX if a size in this sum is unknown. */
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
    RS_FREE_AS_UPSTREAM, /* when the upstream does it: the resource is an adaptor that keeps no
                            memory */
    RS_FREE_WAITS,   /* only after all earlier work of the context: the free waits for the work, or
                        the resource keeps the block until then */
    RS_FREE_AT_ONCE, /* at once: the caller must make sure that no work uses the block any more */
};

/* What the function `validate` of a descriptor gets beside the option values: the device for which
 * they are checked, and where errors are reported. */
struct rs_validation {
    const struct rs_environment *environment; /* NULL at parse time */
    const struct rs_source *source;
    struct rs_diagnostics *diagnostics;
};

/* For use in `validate`: reports what is wrong with the option values.  Its value is false. */
#define RS_REFUSE(of, ...) rs_diagnose((of)->diagnostics, (of)->source, NULL, __VA_ARGS__)

/* The description of a kind of resource: its names, its options and its behaviour. */
struct rs_mr_descriptor {
    const char *name;
    const char *aliases[3];  /* other names, RMM's among them */
    const char *summary;     /* one clause, for help and manual */
    unsigned upstream_count; /* 0: a leaf; 2: `fallback`, whose second upstream serves requests for
                                which the first is out of memory */
    const struct rs_mr_descriptor *branch; /* the kind of the further upstreams, called branches,
                                              each of which serves certain sizes (`bin` of
                                              `binning`); NULL: no branches */
    enum rs_memory memory;                 /* of a leaf: the kind of its memory */
    bool overcommits; /* of a leaf: pages exist only once they are used, so allocations may exceed
                         the memory of device and host */
    enum rs_free_behaviour frees;
    bool dies_with_context; /* of a leaf: the driver frees the memory when the context ends; if
                               false, the op context_ended frees the memory */
    size_t config_bytes;
    const struct rs_option *options; /* ends with RS_OPTION_END; never NULL */
    /* For a resource that cuts blocks: the name of the RS_OPTION_SIZE option that sets its unit.
     * Every block's address and rounded size are multiples of that option's value.  NULL: there is
     * none. */
    const char *unit_option;
    bool keeps_blocks; /* each block has an upstream block of its own: none is cut (`poison`) */

    /* The kind of memory that a leaf with these settings is counted as; NULL: always `memory`. */
    enum rs_memory (*counted_as)(const void *config);

    /* Checks option values against each other, such as a maximum against an initial size.  Returns
     * false after reporting an error.  Called at parse time if no value is a percentage, and again
     * when the stack is made; sizes are in bytes by then.  environment->total_bytes is 0 unless all
     * memory beneath is device memory.  May be NULL. */
    bool (*validate)(const void *config, const struct rs_validation *of);
};

/* What makes a resource and what it does.  It stands beside the descriptor and not in it, so that a
 * program that only parses and describes expressions, as rmmshim-tables does, links none of it. */
struct rs_mr_class {
    /* For rs_mr_create: the size of the resource's structure, and the offset in it to which
     * `config` is copied (0: not copied). */
    size_t bytes, config_offset;
    const struct rs_mr_ops *ops;
    /* Called with the resource's own fields zero, apart from the copied config.  Returns 0 or
     * -errno, after which the resource is destroyed.  `config` and its text live only during the
     * call.  May be NULL. */
    int (*init)(struct rs_mr *mr, const void *config);
};

/* Defines a class; `function` is its init, or NULL. */
#define RS_MR_CLASS(name, type, operations, function)                                              \
    const struct rs_mr_class rs_mr_class_##name = {                                                \
        .bytes = sizeof(type), .ops = &(operations), .init = (function)}

/* Defines a class as RS_MR_CLASS does, and has the configuration copied into the field `set` of the
 * structure.  The configuration must have no texts. */
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

/* Returns the place in the word [begin, end) at which an ending of RMM's class names begins, or
 * `end` if there is none.  Examples, with the place marked by '|': Pool|MemoryResource,
 * pool|_memory_resource, Limiting|ResourceAdaptor, managed|_memory. */
const char *rs_mr_word_end(const char *begin, const char *end);

/* Returns the descriptor whose name or alias is the text [begin, end), or NULL.  Case, the ending
 * that rs_mr_word_end finds, and each '_' that the text lacks are ignored. */
const struct rs_mr_descriptor *rs_mr_find(const char *begin, const char *end);

/* Initialises the base of a resource: copies the ops, which must have allocate and deallocate, and
 * sets the upstreams.  Some ops that are NULL get a default here; the functions below, such as
 * rs_mr_trim_with, handle the rest. */
void rs_mr_init(struct rs_mr *mr, const struct rs_mr_ops *ops,
                const struct rs_mr_descriptor *descriptor, struct rs_mr *const *upstream);

/* True when `bytes` fit into the device's memory, or its size is not known.  False after a
 * diagnostic, in which `what` names the bytes. */
bool rs_mr_fits_device(const struct rs_validation *of, const char *what, size_t bytes);

/* Makes a resource of this descriptor.  `upstream` has one entry for each upstream, and may be NULL
 * for a leaf.  If the descriptor has branches, `upstream` has RS_MR_UPSTREAMS_MAX entries, with
 * NULL behind the last upstream.  Returns 0 or -errno. */
int rs_mr_create(const struct rs_mr_descriptor *descriptor,
                 const struct rs_environment *environment, const void *config,
                 struct rs_mr *const *upstream, struct rs_mr **out);

/* Destroys a whole stack from its top down.  mr: may be NULL. */
void rs_mr_destroy(struct rs_mr *mr, bool memory_is_gone);

/* The list of unfinished leaves: those whose memory the driver refused to take back when their
 * context ended.  rs_mr_retry_unfinished calls `finish` of each, when a device is trimmed and when
 * another leaf is made whose memory outlives its context.  A leaf may be added only when no thread
 * is inside it.  Removing a leaf that is not in the list does nothing. */
void rs_mr_add_unfinished(struct rs_mr *mr);
void rs_mr_remove_unfinished(struct rs_mr *mr);
void rs_mr_retry_unfinished(void);

/* An excess_bytes op that returns 0.  For a resource that keeps the blocks that are freed to it,
 * even if a leaf beneath has a release threshold. */
size_t rs_mr_no_excess_bytes(struct rs_mr *mr);

/* ---- calls of the ops: callers use these functions, never mr->ops itself ---- */

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

/* Deallocates for a free that waits, such as cudaFree: on return the driver has executed the free,
 * if the block went back to it.  Only the leaves in leaf/async.c need to know this.  So a variable
 * of the thread tells them, rather than one more argument of every `deallocate`. */
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

/* Called by a trim op: true when the resource must also give back its initial size. */
static inline bool rs_trim_takes_initial(const struct rs_trim *trim, const struct rs_mr *mr)
{
    return (trim->initial_of & mr->memories) != 0;
}

size_t rs_mr_excess_bytes(struct rs_mr *mr);

void rs_mr_synchronise(struct rs_mr *mr, enum rs_synchronise when);

/* The next two functions ask each `reuse` of the stack, the only resource that keeps freed blocks
 * in quarantine.  reuse/allocation.c defines them. */

/* Makes those blocks in quarantine available with which the GPU is done.  If there are none, waits
 * up to wait_ns for the oldest ones.  Thread safe. */
enum rs_readiness rs_mr_make_ready(struct rs_mr *mr, uint64_t wait_ns);

/* Returns a number that changes with each block that enters or leaves quarantine.  If it changed
 * while a request was being refused, another try may succeed. */
uint64_t rs_mr_progress(struct rs_mr *mr);

/* These three functions call the op of `mr` and of every resource below it.  rs_mr_idle_bytes
 * returns the sum.  rs_mr_access_changed stops at the first error, and returns it. */
void rs_mr_context_ended(struct rs_mr *mr);
CUresult rs_mr_access_changed(struct rs_mr *mr, CUdevice peer, bool allowed);
size_t rs_mr_idle_bytes(struct rs_mr *mr);

/* Returns the idle bytes as rs_mr_idle_bytes does, but leaves out the second upstream of each
 * `fallback`. */
size_t rs_mr_idle_bytes_best(struct rs_mr *mr);

/* Returns the idle bytes of those resources that are over any of these kinds of memory (bits
 * 1 << rs_memory). */
size_t rs_mr_idle_bytes_of(struct rs_mr *mr, unsigned memories);

/* Returns the bytes that the stack may still take without the second upstream of any `fallback`.
 * On one path from `mr` to a leaf that is the least growable_bytes.  If branches make several
 * paths, the largest of these numbers is returned. */
size_t rs_mr_growable_bytes_best(struct rs_mr *mr);

/* Returns the bytes that the stack may still take.  Several upstreams of one resource add up. */
size_t rs_mr_growable_bytes(struct rs_mr *mr);

/* Returns the number of free blocks in the stack. */
size_t rs_mr_free_blocks(struct rs_mr *mr);

void rs_mr_report(struct rs_mr *mr, struct rs_report *report);
bool rs_mr_check(struct rs_mr *mr);
