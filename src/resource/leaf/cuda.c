/* SPDX-License-Identifier: Apache-2.0 */
/* cuda: the driver's own allocations, one call each.  RMM's cuda_memory_resource. */
#include "driver/driver.h"
#include "resource/leaf/leaf.h"

static CUresult cuda_take(const struct rs_environment *environment, size_t size_bytes,
                          CUdeviceptr *address)
{
    (void)environment;
    return rs_driver.cuMemAlloc_v2(address, size_bytes);
}

static CUresult cuda_give(CUdeviceptr address)
{
    return rs_driver.cuMemFree_v2(address);
}

/* cuMemFreeAsync also takes memory of cuMemAlloc. */
static CUresult cuda_give_in_order(CUdeviceptr address, CUstream stream)
{
    return rs_driver.cuMemFreeAsync(address, stream);
}

static int cuda_create(const struct rs_environment *environment, const void *config,
                       struct rs_mr *const *upstream, struct rs_mr **out)
{
    int failed;

    (void)config;
    (void)upstream;
    failed = rs_leaf_create(&rs_mr_descriptor_cuda, environment, cuda_take, cuda_give, out);
    if (!failed)
        RS_CONTAINER_OF(*out, struct rs_leaf, base)->give_in_order = cuda_give_in_order;
    return failed;
}

static const struct rs_option cuda_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_cuda = {
    .name = "cuda",
    .summary = "device memory, one driver allocation per request (cudaMalloc)",
    .memory = RS_MEMORY_DEVICE,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .options = cuda_options,
    .create = cuda_create,
};
