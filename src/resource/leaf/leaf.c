/* SPDX-License-Identifier: Apache-2.0 */
/* Leaves over a pair of driver calls. */
#include "resource/leaf/leaf.h"

#include "base/file.h"
#include "base/lock.h"
#include "base/request.h"
#include "driver/driver.h"
#include "driver/fence.h"
#include "driver/stream.h"
#include "resource/report.h"
#include "resource/segment.h"

/* ---- giving memory back to the driver ---- */

enum {
    /* The longest wait for the library's own stream before the leaf takes more memory. */
    SETTLE_NS = 500 * 1000,
    SETTLE_SHORT_NS = 50 * 1000000, /* the longest such wait where memory is short: after a refusal,
                                       or in a trim inside a request */
};

static CUresult give_waiting(struct rs_leaf *leaf, CUdeviceptr address)
{
    RS_RELAXED_GUARD();

    return leaf->calls->give(address);
}

static bool has_order(const struct rs_leaf *leaf)
{
    return leaf->calls->has_order && rs_driver.cuMemFreeAsync && leaf->base.environment->own_stream;
}

static CUstream stream_of_leaf(const struct rs_leaf *leaf)
{
    RS_ASSERT(has_order(leaf)); /* else the leaf frees nothing on this stream */
    return rs_own_stream(leaf->base.environment->own_stream, leaf->base.environment->context);
}

static CUresult give_in_order(struct rs_leaf *leaf, CUdeviceptr address, CUstream stream)
{
    CUresult result;
    RS_RELAXED_GUARD();
    RS_CONTEXT_GUARD(leaf->base.environment->context, &result);

    return result == CUDA_SUCCESS ? rs_driver.cuMemFreeAsync(address, stream) : result;
}

/* Gives an allocation back. stream: the stream of the program in whose order the block is freed;
 * NULL: none.  *settled: true if the bytes come off the account at once; false if they must stay
 * charged until settle_leaf.  Returns CUDA_ERROR_NOT_READY for a free that would have to wait
 * inside a request. */
static CUresult give_to_driver(struct rs_leaf *leaf, CUdeviceptr address, CUstream stream,
                               bool *settled)
{
    bool in_request = rs_request_is_under_way(), ready = leaf->base.environment->frees_are_ready;
    bool in_order = has_order(leaf) && (ready || in_request);

    *settled = !in_order;
    /* Only without a limit is the memory freed on the program's stream.  With one, the next request
     * may need these bytes, and the leaf could not wait for that stream. */
    if (stream && !in_order && has_order(leaf) &&
        rs_account_most(leaf->base.environment->account) == SIZE_MAX)
        return give_in_order(leaf, address, stream);
    if (in_request && !(ready && in_order) &&
        !rs_request_sees_idle(leaf->base.environment->context))
        return CUDA_ERROR_NOT_READY;
    return in_order ? give_in_order(leaf, address, stream_of_leaf(leaf))
                    : give_waiting(leaf, address);
}

static void count_given(struct rs_leaf *leaf, size_t size_bytes, size_t charge_bytes)
{
    rs_account_give(leaf->base.environment->account, size_bytes, charge_bytes, leaf->memory);
    atomic_fetch_sub_explicit(&leaf->held_bytes, size_bytes, memory_order_relaxed);
}

static void leave_unsettled(struct rs_leaf *leaf, size_t size_bytes, size_t charge_bytes)
{
    rs_spinlock_lock(&leaf->lock);
    leaf->unsettled_bytes += size_bytes;
    leaf->unsettled_charge_bytes += charge_bytes;
    rs_spinlock_unlock(&leaf->lock);
}

static size_t unsettled_bytes(struct rs_leaf *leaf)
{
    size_t bytes;

    rs_spinlock_lock(&leaf->lock);
    bytes = leaf->unsettled_bytes;
    rs_spinlock_unlock(&leaf->lock);
    return bytes;
}

/* Settles the unsettled blocks: waits until the library's own stream has executed their frees, and
 * takes their bytes off the account.  Waits up to bound_ns, since the stream may share a channel
 * with work that waits for this thread.  Returns the bytes settled; 0 if the wait was too short. */
static size_t settle_leaf(struct rs_leaf *leaf, uint64_t bound_ns)
{
    struct rs_account *account = leaf->base.environment->account;
    size_t bytes, charge_bytes;
    bool settled;

    if (unsettled_bytes(leaf) == 0)
        return 0;
    rs_spinlock_lock(&leaf->lock);
    bytes = leaf->unsettled_bytes;
    charge_bytes = leaf->unsettled_charge_bytes;
    rs_account_begin_return(account, charge_bytes);
    leaf->unsettled_bytes = leaf->unsettled_charge_bytes = 0;
    rs_spinlock_unlock(&leaf->lock);
    settled = bytes == 0 || rs_own_stream_settle(stream_of_leaf(leaf), bound_ns);
    if (!settled)
        leave_unsettled(leaf, bytes, charge_bytes);
    else if (bytes > 0)
        count_given(leaf, bytes, charge_bytes);
    rs_account_end_return(account, charge_bytes);
    return settled ? bytes : 0;
}

/* ---- allocation ---- */

/* Gives back a block that the program will never get.  After a free on the library's own stream it
 * synchronises with the stream at once, as the leaf does not record this block as unsettled. */
static CUresult give_unseen(struct rs_leaf *leaf, CUdeviceptr address)
{
    CUstream stream = has_order(leaf) ? stream_of_leaf(leaf) : NULL;
    CUresult result =
        has_order(leaf) ? give_in_order(leaf, address, stream) : give_waiting(leaf, address);

    if (stream && result == CUDA_SUCCESS)
        (void)rs_own_stream_settle(stream, SETTLE_SHORT_NS);
    return result;
}

/* Charges the account, takes the memory, and enters its segment; undoes the steps when one fails.
 */
static CUresult take_once(struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address)
{
    struct rs_account *account = leaf->base.environment->account;
    enum rs_memory memory = leaf->memory;
    CUstreamCaptureMode mode;
    size_t charged_bytes;
    CUresult result;

    if (!rs_account_take(account, size_bytes, rs_footprint_most(size_bytes), memory))
        return CUDA_ERROR_OUT_OF_MEMORY;
    mode = rs_capture_relax();
    result = rs_effort_result_of_driver(leaf->calls->take(leaf, size_bytes, address));
    rs_capture_restore(mode);
    if (result == CUDA_SUCCESS && *address % RS_BLOCK_ALIGNMENT != 0) {
        (void)give_unseen(leaf, *address);
        /* No driver is known that returns an address without this alignment. */
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS &&
        !rs_segment_add(leaf->base.environment, *address, size_bytes, false)) {
        (void)give_unseen(leaf, *address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS &&
        !rs_footprint_settle(account, *address, size_bytes, memory, &charged_bytes)) {
        rs_segment_remove(leaf->base.environment, *address);
        (void)give_unseen(leaf, *address);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        rs_account_untake(account, size_bytes, rs_footprint_most(size_bytes), memory);
    return result;
}

/* Takes memory, trying again as long as others can give idle memory back.  First this leaf settles
 * its own frees, then all stacks of the device (for host memory: of all devices) are asked.  If a
 * `reuse` is above, this does not wait for freed blocks: `reuse` waits for them itself, and can
 * serve the request with them. */
static CUresult take_repeatedly(struct rs_leaf *leaf, size_t size_bytes, enum rs_effort effort,
                                CUdeviceptr *address)
{
    const struct rs_environment *environment = leaf->base.environment;
    struct rs_refusal refusal = {.size_bytes = size_bytes, .memory = leaf->memory};
    CUresult result;

    (void)settle_leaf(leaf, SETTLE_NS);
    do {
        refusal.releases = rs_account_releases(environment->account);
        result = take_once(leaf, size_bytes, address);
        if (result != CUDA_ERROR_OUT_OF_MEMORY)
            return result;
    } while (settle_leaf(leaf, SETTLE_SHORT_NS) > 0 ||
             rs_environment_reclaims(environment, &refusal, effort));
    rs_request.is_short = true;
    return result;
}

static void count_taken(struct rs_leaf *leaf, size_t size_bytes)
{
    size_t held_bytes =
        size_bytes + atomic_fetch_add_explicit(&leaf->held_bytes, size_bytes, memory_order_relaxed);

    rs_counter_raise(&leaf->peak_held_bytes, held_bytes);
    atomic_fetch_add_explicit(&leaf->allocations, 1, memory_order_relaxed);
}

/* Makes one driver allocation for each request.  The leaf holds no idle memory, so it cannot serve
 * a request with RS_EFFORT_HELD. */
static CUresult leaf_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                              enum rs_effort effort, struct rs_allocation *out)
{
    struct rs_leaf *leaf = RS_MR_AS(rs_leaf, mr);
    CUdeviceptr address = 0;
    CUresult result;

    (void)stream; /* the driver calls are synchronous: the memory is usable on every stream */
    if (rs_effort_is_held(effort))
        return CUDA_ERROR_NOT_READY;
    rs_request_begin();
    result = take_repeatedly(leaf, size_bytes, effort, &address);
    rs_request_end();
    if (result != CUDA_SUCCESS) {
        atomic_fetch_add_explicit(&leaf->failures, 1, memory_order_relaxed);
        return result;
    }
    count_taken(leaf, size_bytes);
    *out = (struct rs_allocation){address, size_bytes, NULL, NULL};
    return CUDA_SUCCESS;
}

static CUresult give_block_back(struct rs_leaf *leaf, const struct rs_allocation *allocation,
                                CUstream stream)
{
    size_t size_bytes = allocation->size_bytes, charge_bytes;
    CUresult result;
    bool settled;

    /* The segment is removed before the free: after it the driver may give the address to another
     * thread, whose segment must not be removed. */
    rs_segment_remove(leaf->base.environment, allocation->address);
    result = give_to_driver(leaf, allocation->address, stream, &settled);
    if (result != CUDA_SUCCESS) {
        /* The driver did not free the memory, so its segment is entered again.  That cannot fail,
         * since the entry was there before. */
        (void)rs_segment_add(leaf->base.environment, allocation->address, size_bytes, false);
        return result;
    }
    charge_bytes = rs_footprint_leave(leaf->base.environment->account, allocation->address,
                                      size_bytes, leaf->memory);
    atomic_fetch_add_explicit(&leaf->deallocations, 1, memory_order_relaxed);
    if (settled)
        count_given(leaf, size_bytes, charge_bytes);
    else
        leave_unsettled(leaf, size_bytes, charge_bytes);
    return CUDA_SUCCESS;
}

static CUresult leaf_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                CUstream stream)
{
    /* If the thread were cancelled inside the driver, the block would be lost. */
    RS_UNCANCELLED_GUARD();

    return give_block_back(RS_MR_AS(rs_leaf, mr), allocation, stream);
}

static void leaf_end(struct rs_mr *mr, bool memory_is_gone)
{
    struct rs_leaf *leaf = RS_MR_AS(rs_leaf, mr);

    /* With memory_is_gone nothing is to settle: rs_account_lose has dropped these bytes too. */
    if (!memory_is_gone && unsettled_bytes(leaf) > 0) {
        (void)rs_own_stream_wait(stream_of_leaf(leaf));
        (void)settle_leaf(leaf, UINT64_MAX);
    }
}

static bool leaf_deallocates_in_order(struct rs_mr *mr)
{
    return has_order(RS_MR_AS(rs_leaf, mr));
}

/* Settles the unsettled blocks.  Returns 0, since the resource above that gave these blocks back
 * has counted their bytes already. */
static size_t leaf_trim(struct rs_mr *mr, const struct rs_trim *trim)
{
    (void)trim;
    (void)settle_leaf(RS_MR_AS(rs_leaf, mr),
                      rs_request_is_under_way() ? SETTLE_SHORT_NS : UINT64_MAX);
    return 0;
}

static size_t leaf_idle_bytes(struct rs_mr *mr)
{
    return unsettled_bytes(RS_MR_AS(rs_leaf, mr));
}

static const struct rs_counter_row leaf_counters[] = {
    RS_COUNTER_ROW("held", LIVE, BYTES, struct rs_leaf, held_bytes),
    RS_COUNTER_ROW("held_peak", PEAK, BYTES, struct rs_leaf, peak_held_bytes),
    RS_COUNTER_ROW("driver_allocations", TOTAL, COUNT, struct rs_leaf, allocations),
    RS_COUNTER_ROW("driver_frees", TOTAL, COUNT, struct rs_leaf, deallocations),
    RS_COUNTER_ROW("internal_refusals", TOTAL, COUNT, struct rs_leaf, failures),
    RS_COUNTER_END,
};

const struct rs_mr_ops rs_leaf_ops = {
    .allocate = leaf_allocate,
    .deallocate = leaf_deallocate,
    .end = leaf_end,
    .deallocates_in_order = leaf_deallocates_in_order,
    .trim = leaf_trim,
    .idle_bytes = leaf_idle_bytes,
    .counters = leaf_counters,
};

int rs_leaf_init(struct rs_mr *mr, const struct rs_leaf_calls *calls, enum rs_memory memory)
{
    struct rs_leaf *leaf = RS_MR_AS(rs_leaf, mr);

    leaf->calls = calls;
    leaf->memory = memory;
    mr->memories = 1u << memory;
    rs_spinlock_init(&leaf->lock, RS_RANK_RESOURCE);
    return 0;
}

/* ---- cuda: one driver allocation for each request.  RMM's cuda_memory_resource. ---- */

static CUresult cuda_take(const struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address)
{
    (void)leaf;
    return rs_driver.cuMemAlloc_v2(address, size_bytes);
}

static CUresult cuda_give(CUdeviceptr address)
{
    return rs_driver.cuMemFree_v2(address);
}

/* cuMemFreeAsync also frees memory that came from cuMemAlloc. */
static const struct rs_leaf_calls cuda_calls = {cuda_take, cuda_give, .has_order = true};

static int cuda_init(struct rs_mr *mr, const void *config)
{
    (void)config;
    return rs_leaf_init(mr, &cuda_calls, RS_MEMORY_DEVICE);
}

static const struct rs_option cuda_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_cuda = {
    .name = "cuda",
    .summary = "device memory, with one driver allocation for each request (cudaMalloc)",
    .memory = RS_MEMORY_DEVICE,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .options = cuda_options,
};

RS_MR_CLASS(cuda, struct rs_leaf, rs_leaf_ops, cuda_init);

/* ---- managed: memory that migrates between host and device.  RMM's managed_memory_resource. ----
 */

struct managed_config {
    bool charged;
};

static CUresult managed_take(const struct rs_leaf *leaf, size_t size_bytes, CUdeviceptr *address)
{
    (void)leaf;
    return rs_driver.cuMemAllocManaged(address, size_bytes, CU_MEM_ATTACH_GLOBAL);
}

static const struct rs_leaf_calls managed_calls = {managed_take, cuda_give, .has_order = false};

static enum rs_memory managed_counted_as(const void *config)
{
    const struct managed_config *settings = config;

    return settings->charged ? RS_MEMORY_MANAGED : RS_MEMORY_HOST;
}

static int managed_init(struct rs_mr *mr, const void *config)
{
    return rs_leaf_init(mr, &managed_calls, managed_counted_as(config));
}

static const struct rs_option managed_options[] = {
    RS_OPTION_BOOLEAN_ROW(struct managed_config, charged, "1",
                          "1 (the default): managed memory counts against a limit, as device "
                          "memory does; 0: managed memory does not count, so a program can use it "
                          "even when its device memory has reached the limit"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_managed = {
    .name = "managed",
    .summary = "memory that migrates between host and device (cudaMallocManaged)",
    .memory = RS_MEMORY_MANAGED,
    .overcommits = true,
    .counted_as = managed_counted_as,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .config_bytes = sizeof(struct managed_config),
    .options = managed_options,
};

RS_MR_CLASS(managed, struct rs_leaf, rs_leaf_ops, managed_init);
