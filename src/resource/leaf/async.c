/* SPDX-License-Identifier: Apache-2.0 */
/* async: a memory pool of the driver for each stack.  RMM's cuda_async_memory_resource.
 *
 * All allocations and frees are ordered on the library's own stream of the context
 * (driver/stream.h), to which the program gives no work.  An allocation is handed out when that
 * stream has completed it: from then on it is usable on every stream.  A free comes when no work
 * uses the block any more: `reuse` above, or detached_deallocate, has made sure of that.
 *
 * The driver does not tell the sizes of the free pieces in its pool.  So a request that must not
 * make the pool grow is tried, and undone if the pool has grown.
 *
 * The pool belongs to the device and outlives the context (MEASURED.md): see detached_leaf.h. */
#include "base/log.h"
#include "base/request.h"
#include "driver/driver.h"
#include "driver/stream.h"
#include "resource/leaf/detached_leaf.h"

#include <errno.h>

/* The largest step by which a driver pool was seen to grow for a smaller request. */
enum { STEP_BYTES = 32 << 20 };

/* The longest wait for the library's own stream in a free that waits, as cudaFree does. */
static const uint64_t free_wait_ns = 1000ull * 1000 * 1000;

/* The longest other wait for the library's own stream; an allocation may wait longer (try_to_take).
 * Every wait is bounded: if that stream shares a channel with streams of the program, it may be
 * behind work that waits for this thread.  A free of 4 GiB takes 1 to 2 ms on the stream. */
static const uint64_t idle_wait_ns = 20ull * 1000 * 1000;

static const char *const ipc_words[] = {RS_OPTION_BOOLEAN_WORDS, "auto", NULL};
enum { IPC_YES = 1, IPC_AUTO = 8 };

struct async_config {
    size_t initial_size, release_threshold;
    int ipc; /* whether the pool can be shared with other processes (ipc/pool.h): an index into
                ipc_words */
};

struct async {
    struct rs_detached_leaf leaf; /* its lock also protects the sizes below; the only driver calls
                                     under it read the pool's attributes, and wait for no work */
    CUmemoryPool pool;
    struct async_config set; /* release_threshold SIZE_MAX: the pool keeps all unused memory */
    size_t initial_bytes;    /* the initial size, or 0 if it could not be reserved; only a trim with
                                initial_of takes it from the pool */
    /* The most by which calls under way may make the pool grow.  These bytes are charged to the
     * account, in addition to the bytes that the pool has reserved (the leaf's held bytes). */
    size_t pending_bytes;

    /* vain_bytes: the size of the last request that idle memory could not serve; SIZE_MAX: none.
     * given_bytes: by how much idle memory may have grown since, by frees and growth.  Not
     * protected by the lock: stale values cause at most an attempt in vain. */
    _Atomic size_t vain_bytes, given_bytes;
};

static struct async *async_of(struct rs_detached_leaf *leaf)
{
    return RS_CONTAINER_OF(leaf, struct async, leaf);
}

static enum rs_memory memory_of_async(const struct async *async)
{
    return async->leaf.base.descriptor->memory;
}

/* ---- the pool's bytes in the account ---- */

/* The account counts the bytes that the driver's pool has reserved, live or not.  They change
 * inside the driver: the pool grows in an allocation, and shrinks in any synchronisation when the
 * release threshold is low, or when the device is full.  So the most that a call may add is charged
 * before the call; after it the charge is replaced by the bytes that the pool reports.  The limit
 * is exceeded only for a moment, when a request should have fitted into the pool's idle memory and
 * the pool grew all the same.  The request is undone then. */

/* Returns an attribute of the driver's pool in bytes.  If the driver refuses, returns the live
 * bytes, which are a lower bound. */
static size_t pool_bytes(const struct async *async, CUmemPool_attribute attribute)
{
    RS_RELAXED_GUARD();
    cuuint64_t bytes = 0;

    if (rs_driver.cuMemPoolGetAttribute(async->pool, attribute, &bytes) != CUDA_SUCCESS)
        bytes = async->leaf.live_bytes;
    return bytes;
}

/* True when idle memory of the pool may serve a request of size_bytes: there is enough of it, and
 * it is not known to lie in smaller pieces.  Frees make pieces larger.  With RS_EFFORT_CUT_ANY any
 * free since the last attempt in vain is reason enough to try again; otherwise size_bytes must have
 * been freed, since an attempt in vain costs a growth that is undone. */
static bool has_idle(const struct async *async, size_t size_bytes, enum rs_effort effort)
{
    size_t enough_bytes = effort & RS_EFFORT_CUT_ANY ? 1 : size_bytes;
    bool is_scattered = size_bytes >= atomic_load(&async->vain_bytes) &&
                        atomic_load(&async->given_bytes) < enough_bytes;

    return !is_scattered &&
           rs_counter_idle(&async->leaf.held_bytes, &async->leaf.live_bytes) >= size_bytes;
}

/* Notes that idle memory could not serve a request of size_bytes. */
static void note_in_vain(struct async *async, size_t size_bytes)
{
    atomic_store(&async->given_bytes, 0);
    atomic_store(&async->vain_bytes, size_bytes);
}

/* Charges growth_bytes, the most by which a call may make the pool grow.  False at the limit. */
static bool charge_growth(struct async *async, size_t growth_bytes)
{
    if (!rs_account_take(async->leaf.base.environment->account, growth_bytes, growth_bytes,
                         memory_of_async(async)))
        return false;
    RS_MUTEX_GUARD(&async->leaf.base.lock);
    async->pending_bytes += growth_bytes;
    return true;
}

/* Charges the bytes that the pool has reserved now, in place of growth_bytes, which were charged
 * before a call; 0 after another change of the pool.  Returns false, with the old charge kept, when
 * the pool has grown past the limit; without may_grow also when it has grown by more than was
 * charged. */
static bool settle_pool(struct async *async, size_t growth_bytes, bool may_grow)
{
    struct rs_account *account = async->leaf.base.environment->account;
    struct rs_amount from = {.asked_bytes = growth_bytes}, to = {.asked_bytes = 0};
    size_t reserved, charged, wanted;
    bool good = true;

    RS_MUTEX_GUARD(&async->leaf.base.lock);
    reserved = pool_bytes(async, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    charged = async->leaf.held_bytes + async->pending_bytes;
    async->pending_bytes -= growth_bytes;
    /* The bytes that other calls may still add stay charged.  The pool may have reserved some of
     * them already. */
    wanted = rs_max(reserved, rs_min(charged, reserved + async->pending_bytes));
    if (wanted > charged) {
        good = may_grow &&
               rs_account_take(account, wanted - charged, wanted - charged, memory_of_async(async));
        from.asked_bytes += good ? wanted - charged : 0;
    } else {
        from.held_bytes = from.charged_bytes = charged - wanted;
    }
    rs_account_settle(account, from, to, memory_of_async(async));
    rs_detached_leaf_hold(&async->leaf, (good ? wanted : charged) - async->pending_bytes);
    return good;
}

/* ---- the driver's calls ---- */

static CUstream stream_of_async(const struct async *async)
{
    return rs_own_stream(async->leaf.base.environment->own_stream,
                         async->leaf.base.environment->context);
}

/* Allocates a block if size_bytes > 0, else frees the block at *address, in the order of the
 * library's own stream.  Does not wait. */
static CUresult allocate_or_free(const struct async *async, size_t size_bytes, CUdeviceptr *address)
{
    CUstream stream = stream_of_async(async);
    CUresult result;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(async->leaf.base.environment->context, &result);

    if (result != CUDA_SUCCESS)
        return result;
    return size_bytes > 0
               ? rs_driver.cuMemAllocFromPoolAsync(address, size_bytes, async->pool, stream)
               : rs_driver.cuMemFreeAsync(*address, stream);
}

/* Allocates a block, and waits at most bound_ns until it is usable on every stream.  If that takes
 * longer, gives the block back and returns CUDA_ERROR_NOT_READY. */
static CUresult allocate_and_wait(const struct async *async, size_t size_bytes, uint64_t bound_ns,
                                  CUdeviceptr *address)
{
    CUresult result = allocate_or_free(async, size_bytes, address);

    if (result != CUDA_SUCCESS)
        return result;
    /* No driver is known that returns a misaligned address. */
    result = *address % RS_BLOCK_ALIGNMENT ? CUDA_ERROR_NOT_SUPPORTED
                                           : rs_own_stream_poll(stream_of_async(async), bound_ns);
    if (result != CUDA_SUCCESS)
        /* No wait is needed: the stream executes this free after the allocation. */
        (void)allocate_or_free(async, 0, address);
    return result;
}

/* Has the driver take back idle memory until the pool has no more than keep_bytes reserved. */
static void trim_pool(const struct async *async, size_t keep_bytes)
{
    RS_RELAXED_GUARD();

    (void)rs_driver.cuMemPoolTrimTo(async->pool, keep_bytes);
}

/* Gives idle memory back to the driver, except for keep_bytes of it; the pool keeps at_least_bytes
 * reserved, live or idle.  Returns the bytes by which the held bytes fell. */
static size_t shrink_pool(struct async *async, size_t keep_bytes, size_t at_least_bytes)
{
    size_t kept_bytes, before_bytes, after_bytes;

    (void)rs_own_stream_settle(stream_of_async(async), idle_wait_ns);
    (void)settle_pool(async, 0, true);
    before_bytes = rs_counter_get(&async->leaf.held_bytes);
    if (__builtin_add_overflow(pool_bytes(async, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), keep_bytes,
                               &kept_bytes))
        return 0;
    trim_pool(async, rs_max(kept_bytes, at_least_bytes));
    (void)settle_pool(async, 0, true);
    after_bytes = rs_counter_get(&async->leaf.held_bytes);
    return before_bytes > after_bytes ? before_bytes - after_bytes : 0;
}

/* ---- the leaf ---- */

/* Tries a request, for which growth_bytes of growth are charged first.  The request is undone if
 * the pool has then grown past the limit; without may_grow also if it has grown by more than was
 * charged. */
static CUresult try_to_take(struct async *async, size_t size_bytes, size_t growth_bytes,
                            bool may_grow, CUdeviceptr *address)
{
    uint64_t wait_ns;
    CUresult result;

    if (!charge_growth(async, growth_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    wait_ns = may_grow ? rs_max(rs_request_patience_ns(), idle_wait_ns) : idle_wait_ns;
    result = allocate_and_wait(async, size_bytes, wait_ns, address);
    /* After a refused call the pool has the memory that the driver could gather for the call.  It
     * goes back at once.  Otherwise each reclaim would give it back, and so the request would be
     * repeated for ever. */
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        trim_pool(async, rs_counter_get(&async->leaf.held_bytes));
    if (!settle_pool(async, growth_bytes, may_grow)) {
        if (result == CUDA_SUCCESS) {
            (void)allocate_or_free(async, 0, address);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        (void)rs_own_stream_settle(stream_of_async(async), idle_wait_ns);
        trim_pool(async, rs_counter_get(&async->leaf.held_bytes));
        (void)settle_pool(async, 0, true);
    }
    if (result == CUDA_SUCCESS && growth_bytes > 0)
        atomic_fetch_add(&async->given_bytes, growth_bytes);
    return result;
}

/* Takes a block from the pool's idle memory.  Returns CUDA_ERROR_NOT_READY if there is too little,
 * or the library's own stream takes too long.  Returns CUDA_ERROR_OUT_OF_MEMORY if the pieces were
 * too small, so that the driver's pool grew and the request was undone. */
static CUresult take_idle(struct async *async, size_t size_bytes, enum rs_effort effort,
                          CUdeviceptr *address)
{
    CUresult result;

    if (!has_idle(async, size_bytes, effort))
        return CUDA_ERROR_NOT_READY;
    result = try_to_take(async, size_bytes, 0, false, address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        note_in_vain(async, size_bytes);
    return result;
}

static CUresult async_take(struct rs_detached_leaf *leaf, size_t size_bytes, enum rs_effort effort,
                           CUdeviceptr *address)
{
    struct async *async = async_of(leaf);
    const struct rs_environment *environment = async->leaf.base.environment;
    struct rs_refusal refusal = {.size_bytes = size_bytes, .memory = memory_of_async(async)};
    size_t step_bytes, growth_bytes;
    CUresult result;

    if (rs_effort_is_held(effort))
        return take_idle(async, size_bytes, effort, address);
    if (!rs_round_up(size_bytes, STEP_BYTES, &step_bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    rs_request_begin();
    growth_bytes = has_idle(async, size_bytes, effort) ? 0 : step_bytes;
    /* Idle memory of all stacks of the device, this pool's too, counts against the limit.  So after
     * a refusal it is reclaimed, and the request is tried again. */
    do {
        refusal.releases = rs_account_releases(environment->account);
        result = try_to_take(async, size_bytes, growth_bytes, true, address);
        growth_bytes = step_bytes;
    } while (result == CUDA_ERROR_OUT_OF_MEMORY &&
             rs_environment_reclaims(environment, &refusal, effort));
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        rs_request.is_short = true;
    rs_request_end();
    return rs_effort_result_of_driver(result);
}

static CUresult async_give(struct rs_detached_leaf *leaf, CUdeviceptr address, size_t size_bytes)
{
    struct async *async = async_of(leaf);
    CUresult result = allocate_or_free(async, 0, &address);

    if (result != CUDA_SUCCESS)
        return result;
    /* After a free that waits for the GPU, the program may ask the driver about the address.  The
     * driver should have executed the free by then. */
    if (rs_mr_frees_at_once() || !leaf->base.environment->frees_are_ready)
        (void)rs_own_stream_settle(stream_of_async(async), free_wait_ns);
    atomic_fetch_add(&async->given_bytes, size_bytes);
    return CUDA_SUCCESS;
}

/* Frees with cuMemFree, since the library's own stream may have ended with the context.  cuMemFree
 * also frees memory of a pool, and does not wait then (MEASURED.md). */
static CUresult async_give_late(struct rs_detached_leaf *leaf, CUdeviceptr address,
                                size_t size_bytes)
{
    RS_RELAXED_GUARD();

    (void)leaf;
    (void)size_bytes;
    return rs_driver.cuMemFree_v2(address);
}

/* Destroys the pool, which the driver keeps until the last of its blocks is freed.  Like all calls
 * about the pool this one needs relaxed capture mode: otherwise, while a stream captures, the
 * driver refuses even reads of attributes and trims, and invalidates the capture (facts_h200.txt:
 * pool_attribute, pool_trim). */
static bool async_end(struct rs_detached_leaf *leaf)
{
    struct async *async = async_of(leaf);
    RS_RELAXED_GUARD();
    CUresult result = async->pool ? rs_driver.cuMemPoolDestroy(async->pool) : CUDA_SUCCESS;

    /* Even after a failure no bytes are held any more, since the account ends with its context. */
    RS_MUTEX_GUARD(&leaf->base.lock);
    rs_account_give(leaf->base.environment->account, leaf->held_bytes, leaf->held_bytes,
                    memory_of_async(async));
    rs_detached_leaf_hold(leaf, 0);
    return result == CUDA_SUCCESS;
}

static size_t async_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    struct async *async = async_of(RS_MR_AS(rs_detached_leaf, mr));
    size_t bytes;

    if (!rs_detached_leaf_enter(&async->leaf))
        return 0;
    bytes = shrink_pool(async, trim->keep_bytes,
                        rs_trim_takes_initial(trim, mr) ? 0 : async->initial_bytes);
    (void)rs_detached_leaf_leave(&async->leaf);
    return bytes;
}

static size_t async_excess_bytes(struct rs_mr *mr)
{
    const struct async *async = async_of(RS_MR_AS(rs_detached_leaf, mr));
    size_t held_bytes = rs_counter_get(&async->leaf.held_bytes);

    return held_bytes > async->set.release_threshold ? held_bytes - async->set.release_threshold
                                                     : 0;
}

/* Gives memory above the release threshold back after the program has synchronised.  The driver
 * does that only when the stream is synchronised on which the memory was freed.  That is the
 * library's own stream, with which the program never synchronises. */
static void async_synchronise(struct rs_mr *mr, enum rs_synchronise when)
{
    struct async *async = async_of(RS_MR_AS(rs_detached_leaf, mr));

    if (when < RS_SYNCHRONISE_END_SOME || async_excess_bytes(mr) == 0 ||
        !rs_detached_leaf_enter(&async->leaf))
        return;
    (void)shrink_pool(async, 0, async->set.release_threshold);
    (void)rs_detached_leaf_leave(&async->leaf);
}

static size_t async_idle_bytes(struct rs_mr *mr)
{
    struct async *async = async_of(RS_MR_AS(rs_detached_leaf, mr));
    size_t held_bytes, used_bytes;

    if (!rs_detached_leaf_enter(&async->leaf))
        return 0;
    /* The driver may have released memory meanwhile, so the held bytes are read again. */
    (void)settle_pool(async, 0, true);
    held_bytes = rs_counter_get(&async->leaf.held_bytes);
    used_bytes = pool_bytes(async, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    (void)rs_detached_leaf_leave(&async->leaf);
    return held_bytes > used_bytes ? held_bytes - used_bytes : 0;
}

/* Gives a peer access to the pool's memory, or takes the access away.  cuCtxEnablePeerAccess does
 * not cover a pool, which has access settings of its own.  Managed memory needs none. */
static CUresult set_pool_access(const struct async *async, CUdevice peer, bool allowed)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer},
        .flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE,
    };

    if (memory_of_async(async) == RS_MEMORY_MANAGED)
        return CUDA_SUCCESS;
    return rs_driver.cuMemPoolSetAccess ? rs_driver.cuMemPoolSetAccess(async->pool, &access, 1)
                                        : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult async_access_changed(struct rs_mr *mr, CUdevice peer, bool allowed)
{
    struct async *async = async_of(RS_MR_AS(rs_detached_leaf, mr));
    CUresult result;

    if (!rs_detached_leaf_enter(&async->leaf))
        return CUDA_SUCCESS;
    result = set_pool_access(async, peer, allowed);
    (void)rs_detached_leaf_leave(&async->leaf);
    return result;
}

static const struct rs_detached_calls async_calls = {
    .take = async_take,
    .give = async_give,
    .give_late = async_give_late,
    .end = async_end,
    .holds_more = true,
};

/* ---- creation, for which context/stack.c has set relaxed capture mode ---- */

/* The first driver that has pools of managed memory, and with which a pool that can be shared was
 * measured to give memory back as any other, and to take no longer.  NVIDIA's programming guide
 * says that such a pool gives none back, and that this may change with the driver. */
enum { FIRST_DRIVER = 13000 };

static bool is_new_driver(void)
{
    int version = 0;

    return rs_driver.cuDriverGetVersion && rs_driver.cuDriverGetVersion(&version) == CUDA_SUCCESS &&
           version >= FIRST_DRIVER;
}

/* True when pools can be shared through file descriptors.  Drivers before CUDA 11.3 do not know
 * this attribute, and return an error. */
static bool can_share_pools(CUdevice device)
{
    int types = 0;

    return rs_driver.cuDeviceGetAttribute(&types,
                                          CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
                                          device) == CUDA_SUCCESS &&
           types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
}

/* True when the user asks for a pool that can be shared, so that another one will not do. */
static bool must_share(const struct async_config *config)
{
    return config->ipc & IPC_YES;
}

static bool shares_pool(const struct async *async)
{
    return must_share(&async->set) || (async->set.ipc == IPC_AUTO && is_new_driver() &&
                                       can_share_pools(async->leaf.base.environment->device));
}

static bool create_pool(struct async *async, const CUmemPoolProps *properties)
{
    return rs_driver.cuMemPoolCreate(&async->pool, properties) == CUDA_SUCCESS;
}

static bool make_pool(struct async *async)
{
    CUmemPoolProps properties = {
        .allocType = memory_of_async(async) == RS_MEMORY_MANAGED ? CU_MEM_ALLOCATION_TYPE_MANAGED
                                                                 : CU_MEM_ALLOCATION_TYPE_PINNED,
        .handleTypes =
            shares_pool(async) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE,
                     .id = async->leaf.base.environment->device},
    };
    cuuint64_t threshold = async->set.release_threshold;
    bool created = stream_of_async(async) && create_pool(async, &properties);

    if (!created && async->set.ipc == IPC_AUTO) { /* a sandbox may forbid what is to be shared */
        properties.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
        created = stream_of_async(async) && create_pool(async, &properties);
    }
    return created &&
           rs_driver.cuMemPoolSetAttribute(async->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                           &threshold) == CUDA_SUCCESS;
}

/* Makes the pool reserve its initial size: one allocation and its free, as RMM does. */
static void reserve_initial(struct async *async)
{
    size_t bytes = async->set.initial_size;
    char text[RS_SIZE_TEXT_BYTES];
    char error[32];
    CUdeviceptr address;
    CUresult result = async_take(&async->leaf, bytes, RS_EFFORT_FULL, &address);

    if (result != CUDA_SUCCESS) {
        rs_log("%s: the initial size of %s could not be reserved (%s): the pool starts empty and "
               "grows on demand",
               async->leaf.base.descriptor->name, rs_size_format(bytes, text),
               rs_driver_error_name(result, error));
        return;
    }
    async->initial_bytes = bytes;
    (void)async_give(&async->leaf, address, bytes); /* no work has used the block */
}

static bool allow_peers(const struct async *async)
{
    CUresult result = CUDA_SUCCESS;

    for (uint64_t peers = rs_environment_peers(async->leaf.base.environment);
         peers && result == CUDA_SUCCESS; peers &= peers - 1)
        result = set_pool_access(async, __builtin_ctzll(peers), true);
    return result == CUDA_SUCCESS;
}

static int async_init(struct rs_mr *mr, const void *config)
{
    struct async *async = async_of(RS_MR_AS(rs_detached_leaf, mr));

    (void)config;
    rs_detached_leaf_init(mr, &async_calls);
    mr->ops.trim = async_trim;
    mr->ops.excess_bytes = async_excess_bytes;
    mr->ops.synchronise = async_synchronise;
    mr->ops.idle_bytes = async_idle_bytes;
    mr->ops.access_changed = async_access_changed;
    mr->has_threshold = async->set.release_threshold < SIZE_MAX;
    async->vain_bytes = SIZE_MAX;
    if (!make_pool(async) || !allow_peers(async))
        return -EIO;
    if (async->set.initial_size > 0 && mr->environment->first_on_device)
        reserve_initial(async);
    return 0;
}

/* ---- settings ---- */

/* Checks the sizes against each other and against the device's memory. */
static bool validate(const struct async_config *config, const struct rs_validation *of)
{
    char first[RS_SIZE_TEXT_BYTES], second[RS_SIZE_TEXT_BYTES];

    if (config->initial_size > config->release_threshold)
        return RS_REFUSE(of,
                         "the initial size %s is above the release threshold %s, so the pool would "
                         "not keep its initial size",
                         rs_size_format(config->initial_size, first),
                         rs_size_format(config->release_threshold, second));
    return rs_mr_fits_device(of, "initial size", config->initial_size);
}

static bool has_pools(const struct rs_environment *environment)
{
    return rs_driver.cuMemPoolCreate &&
           rs_driver_device_has(environment->device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
}

static bool async_validate(const void *config, const struct rs_validation *of)
{
    const struct async_config *settings = config;

    if (of->environment && !has_pools(of->environment))
        return RS_REFUSE(
            of,
            "'async' needs memory pools (cudaMemPool), which this driver or device does not have");
    if (of->environment && must_share(settings) && !can_share_pools(of->environment->device))
        return RS_REFUSE(of,
                         "ipc=true needs memory pools that can be shared through file descriptors, "
                         "which this driver or device does not have");
    return validate(config, of);
}

/* The options of both async and async_managed. */
#define SIZE_OPTIONS                                                                               \
    RS_OPTION_SIZE_ROW(                                                                            \
        struct async_config, initial_size, "0",                                                    \
        "how much memory the pool reserves at the first allocation; `rmmshim trim` leaves this "   \
        "memory in the pool; the pool gives it back only when a request would fail otherwise",     \
        .maximum = RS_SIZE_ADDRESSABLE, .beyond_whole = true,                                      \
        .aliases = {{"initial_pool_size", RS_OPTION_SIZE}}),                                       \
        RS_OPTION_SIZE_ROW(                                                                        \
            struct async_config, release_threshold, "none",                                        \
            "unused memory above this size goes back to the driver at the next "                   \
            "synchronisation; none (the default): the pool keeps all unused memory",               \
            .none = true, .beyond_whole = true)

static const struct rs_option async_options[] = {
    SIZE_OPTIONS,
    RS_OPTION_WORD_ROW(
        struct async_config, ipc, ipc_words, "auto",
        "1: other processes under rmmshim can open the pool's blocks through CUDA IPC; "
        "0: no process can; auto (the default): 1 where the device's pools can be shared and the "
        "driver is for CUDA 13.0 or newer, 0 otherwise, as an older driver may keep the unused "
        "memory of such a pool",
        .aliases = {{"enable_ipc", RS_OPTION_WORD}}),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_async = {
    .name = "async",
    .aliases = {"cuda_async"},
    .summary = "device memory from a stream-ordered pool of the driver (cudaMallocFromPoolAsync)",
    .memory = RS_MEMORY_DEVICE,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct async_config),
    .options = async_options,
    .validate = async_validate,
};

RS_MR_CLASS_WITH_SET(async, struct async, rs_detached_ops, async_init);

/* ---- async_managed: a driver pool of managed memory, whose preferred location is the device.
 * RMM's cuda_async_managed_memory_resource uses the device's default pool instead. ---- */

static bool driver_has_managed_pools(const struct rs_environment *environment)
{
    return has_pools(environment) && is_new_driver() &&
           rs_driver_device_has(environment->device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
}

static bool async_managed_validate(const void *config, const struct rs_validation *of)
{
    if (of->environment && !driver_has_managed_pools(of->environment))
        return RS_REFUSE(
            of,
            "'async_managed' needs a driver for CUDA 13.0 or newer, and a device that can access "
            "managed memory at the same time as the host (concurrentManagedAccess)");
    return validate(config, of);
}

static const struct rs_option async_managed_options[] = {SIZE_OPTIONS, RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_async_managed = {
    .name = "async_managed",
    .aliases = {"cuda_async_managed"},
    .summary = "managed memory from a stream-ordered pool of the driver; needs a driver for CUDA "
               "13.0 or newer",
    .memory = RS_MEMORY_MANAGED,
    .overcommits = true,
    .frees = RS_FREE_AT_ONCE,
    .config_bytes = sizeof(struct async_config),
    .options = async_managed_options,
    .validate = async_managed_validate,
};

RS_MR_CLASS_WITH_SET(async_managed, struct async, rs_detached_ops, async_init);
