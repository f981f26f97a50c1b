/* SPDX-License-Identifier: Apache-2.0 */
/* pinned: page-locked host memory, with the flags of its stack.  RMM's pinned_host_memory_resource.
 *
 * It costs 0.5 ms for 4 KiB and 160 ms for 512 MiB (cuda-measured.md), so it is what gains most
 * from a pool. */
#include "driver/driver.h"
#include "resource/leaf.h"

static CUresult pinned_take(const struct rs_place *place, size_t size_bytes, CUdeviceptr *address)
{
    void *host = NULL;
    CUresult result = rs_driver.cuMemHostAlloc(&host, size_bytes, place->host_flags);

    if (result == CUDA_SUCCESS)
        *address = (CUdeviceptr)(uintptr_t)host;
    return result;
}

static CUresult pinned_give(CUdeviceptr address)
{
    return rs_driver.cuMemFreeHost((void *)(uintptr_t)address);
}

static int pinned_create(const struct rs_place *place, const void *config,
                         struct rs_mr *const *upstream, struct rs_mr **out)
{
    (void)config;
    (void)upstream;
    return rs_leaf_create(&rs_mr_descriptor_pinned, place, pinned_take, pinned_give, out);
}

static const struct rs_option pinned_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_pinned = {
    .name = "pinned",
    .aliases = {"pinned_host"},
    .summary = "page-locked host memory (cudaHostAlloc)",
    .memory = RS_MEMORY_HOST,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .options = pinned_options,
    .create = pinned_create,
};
