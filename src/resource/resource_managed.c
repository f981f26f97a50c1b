/* SPDX-License-Identifier: Apache-2.0 */
/* managed: memory that migrates between host and device.  RMM's managed_memory_resource. */
#include "driver/driver.h"
#include "resource/leaf.h"

struct managed_config {
    bool charged;
};

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
    const struct managed_config *settings = config;
    int failed = rs_leaf_create(&rs_mr_descriptor_managed, place, managed_take, managed_give, out);

    (void)upstream;
    if (!failed && !settings->charged) {
        RS_CONTAINER_OF(*out, struct rs_leaf, base)->memory = RS_MEMORY_HOST;
        (*out)->memories = 1u << RS_MEMORY_HOST;
    }
    return failed;
}

static const struct rs_option managed_options[] = {
    RS_OPTION_BOOLEAN_ROW(struct managed_config, charged, "1",
                          "counts as the device's memory against a limit; 0: as the host's, for "
                          "what is spilled from a device that is full"),
    RS_OPTION_END,
};

const struct rs_mr_descriptor rs_mr_descriptor_managed = {
    .name = "managed",
    .summary = "memory that migrates between host and device (cudaMallocManaged)",
    .memory = RS_MEMORY_MANAGED,
    .frees = RS_FREE_WAITS,
    .dies_with_context = true,
    .config_bytes = sizeof(struct managed_config),
    .options = managed_options,
    .create = managed_create,
};
