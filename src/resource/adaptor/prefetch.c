/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch: moves each new block of managed memory to the device before the program touches it, and
 * may advise the driver where to keep the block.  RMM's prefetch_resource_adaptor.
 *
 * A prefetch runs on the library's own stream of the context, in no order with the program's work:
 * if the program touches a page first, the page moves at that moment.  No prefetch outlives its
 * block, since the driver's free waits for that stream too, and so does the fence of `reuse`.
 * Errors of a prefetch are ignored, as the block is usable without it.  Where all memory beneath is
 * device memory nothing is tried.  Elsewhere each block is: for a pinned block, or a device block
 * under a fallback, the driver refuses.  The attempts end when the driver says that the device
 * cannot prefetch at all, or when there is no stream for them.
 *
 * Advice applies to whole pages, so blocks that share a page with a small block get it too.  The
 * advice is taken back when the block is freed, so that no block of a pool keeps it. */
#include "driver/driver.h"

#include "driver/stream.h"
#include "resource/report.h"
#include "resource/resource.h"

enum { PREFERRED_NONE, PREFERRED_DEVICE, PREFERRED_HOST };

static const char *const preferred_words[] = {"none", "device", "host", NULL};

struct prefetch_config {
    int preferred_location;
    bool accessed_by;
};

struct prefetch {
    struct rs_mr base;
    struct prefetch_config set;
    _Atomic bool is_idle; /* nothing is prefetched or advised: the memory cannot be prefetched */
    _Atomic uint64_t prefetches, prefetched_bytes, refusals;
};

static void advise_block(const struct prefetch *prefetch, const struct rs_allocation *allocation,
                         CUmem_advise advice, int where)
{
    (void)rs_placement_advise(prefetch->base.environment->context, allocation->address,
                              allocation->size_bytes, advice, where);
}

/* Gives the advice that the options ask for, or takes it back (`gives` false). */
static void advise(const struct prefetch *prefetch, const struct rs_allocation *allocation,
                   bool gives)
{
    int device = (int)prefetch->base.environment->device;
    int preferred = prefetch->set.preferred_location;

    if (preferred != PREFERRED_NONE)
        advise_block(prefetch, allocation,
                     gives ? CU_MEM_ADVISE_SET_PREFERRED_LOCATION
                           : CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
                     preferred == PREFERRED_HOST ? RS_PLACEMENT_HOST : device);
    if (prefetch->set.accessed_by)
        advise_block(prefetch, allocation,
                     gives ? CU_MEM_ADVISE_SET_ACCESSED_BY : CU_MEM_ADVISE_UNSET_ACCESSED_BY,
                     device);
}

static void start(struct prefetch *prefetch, const struct rs_allocation *allocation)
{
    CUstream stream =
        rs_own_stream(prefetch->base.environment->own_stream, prefetch->base.environment->context);
    CUresult result = CUDA_ERROR_NOT_SUPPORTED;

    if (stream)
        result = rs_placement_prefetch(prefetch->base.environment->context, allocation->address,
                                       allocation->size_bytes,
                                       (int)prefetch->base.environment->device, stream);
    if (result == CUDA_SUCCESS) {
        atomic_fetch_add_explicit(&prefetch->prefetches, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&prefetch->prefetched_bytes, allocation->size_bytes,
                                  memory_order_relaxed);
        return;
    }
    atomic_fetch_add_explicit(&prefetch->refusals, 1, memory_order_relaxed);
    if (result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_NOT_SUPPORTED) {
        atomic_store_explicit(&prefetch->is_idle, true, memory_order_relaxed);
        advise(prefetch, allocation, false); /* prefetch_deallocate will not, with is_idle set */
    }
}

static CUresult prefetch_allocate(struct rs_mr *mr, size_t size_bytes, CUstream stream,
                                  enum rs_effort effort, struct rs_allocation *out)
{
    struct prefetch *prefetch = RS_MR_AS(prefetch, mr);
    CUresult result = rs_mr_allocate_with(mr->upstream[0], size_bytes, stream, effort, out);

    if (result != CUDA_SUCCESS || atomic_load_explicit(&prefetch->is_idle, memory_order_relaxed))
        return result;
    advise(prefetch, out, true);
    start(prefetch, out);
    return CUDA_SUCCESS;
}

/* Takes the advice back before the free: afterwards another thread may have the memory. */
static CUresult prefetch_deallocate(struct rs_mr *mr, const struct rs_allocation *allocation,
                                    CUstream stream)
{
    struct prefetch *prefetch = RS_MR_AS(prefetch, mr);
    bool advised = !atomic_load_explicit(&prefetch->is_idle, memory_order_relaxed);
    CUresult result;

    if (advised)
        advise(prefetch, allocation, false);
    result = rs_mr_deallocate(mr->upstream[0], allocation, stream);
    if (advised && result != CUDA_SUCCESS)
        advise(prefetch, allocation, true);
    return result;
}

static const struct rs_counter_row prefetch_counters[] = {
    RS_COUNTER_ROW("prefetches", TOTAL, COUNT, struct prefetch, prefetches),
    RS_COUNTER_ROW("prefetched", TOTAL, BYTES, struct prefetch, prefetched_bytes),
    RS_COUNTER_ROW("internal_refusals", TOTAL, COUNT, struct prefetch, refusals),
    RS_COUNTER_END,
};

static const struct rs_mr_ops prefetch_ops = {
    .allocate = prefetch_allocate,
    .deallocate = prefetch_deallocate,
    .counters = prefetch_counters,
};

static int prefetch_init(struct rs_mr *mr, const void *config)
{
    (void)config;
    /* Host memory is tried, since pageable memory (system) may migrate. */
    atomic_store(&RS_MR_AS(prefetch, mr)->is_idle, mr->memories == 1u << RS_MEMORY_DEVICE);
    return 0;
}

static const struct rs_option prefetch_options[] = {
    RS_OPTION_WORD_ROW(
        struct prefetch_config, preferred_location, preferred_words, "none",
        "where the driver is advised to keep the pages of each block "
        "(cudaMemAdviseSetPreferredLocation); device: on the device; host: in host memory; none "
        "(the default): no such advice is given"),
    RS_OPTION_BOOLEAN_ROW(struct prefetch_config, accessed_by, "0",
                          "1: advise the driver that the device accesses each block, so that the "
                          "device can read pages on the host without page faults "
                          "(cudaMemAdviseSetAccessedBy); 0: give no such advice"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_prefetch = {
    .name = "prefetch",
    .summary = "moves each block of managed memory to the device when it is allocated",
    .upstream_count = 1,
    .frees = RS_FREE_AS_UPSTREAM,
    .config_bytes = sizeof(struct prefetch_config),
    .options = prefetch_options,
};

RS_MR_CLASS_WITH_SET(prefetch, struct prefetch, prefetch_ops, prefetch_init);
