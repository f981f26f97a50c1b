/* SPDX-License-Identifier: Apache-2.0 */
/* managed: memory that migrates between host and device.  RMM's managed_memory_resource. */
#include "driver/driver.h"
#include "resource/leaf.h"

static CUresult managed_take(const struct rs_place *place, size_t size_bytes, CUdeviceptr *address)
{
    (void)place;
    return rs_driver.cuMemAllocManaged(address, size_bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult managed_give(CUdeviceptr address)
{
    return rs_driver.cuMemFree_v2(address);
}

static int managed_create(const struct rs_place *place, const void *config,
                          struct rs_mr *const *upstream, struct rs_mr **out)
{
    (void)config;
    (void)upstream;
    return rs_leaf_create(&rs_mr_descriptor_managed, place, managed_take, managed_give, out);
}

static const struct rs_option managed_options[] = {RS_OPTION_END};

const struct rs_mr_descriptor rs_mr_descriptor_managed = {
    .name = "managed",
    .summary = "memory that migrates between host and device (cudaMallocManaged)",
    .memory = RS_MEMORY_MANAGED,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .options = managed_options,
    .create = managed_create,
};
