/* SPDX-License-Identifier: Apache-2.0 */
/* managed: memory that migrates between host and device.  RMM's managed_memory_resource. */
#include "driver/driver.h"
#include "resource/leaf/leaf.h"

struct managed_config {
    bool charged;
};

static CUresult managed_take(const struct rs_environment *environment, size_t size_bytes,
                             CUdeviceptr *address)
{
    (void)environment;
    return rs_driver.cuMemAllocManaged(address, size_bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult managed_give(CUdeviceptr address)
{
    return rs_driver.cuMemFree_v2(address);
}

static enum rs_memory managed_counted_as(const void *config)
{
    const struct managed_config *settings = config;

    return settings->charged ? RS_MEMORY_MANAGED : RS_MEMORY_HOST;
}

static int managed_create(const struct rs_environment *environment, const void *config,
                          struct rs_mr *const *upstream, struct rs_mr **out)
{
    int failed =
        rs_leaf_create(&rs_mr_descriptor_managed, environment, managed_take, managed_give, out);

    (void)upstream;
    if (!failed) {
        RS_CONTAINER_OF(*out, struct rs_leaf, base)->memory = managed_counted_as(config);
        (*out)->memories = 1u << managed_counted_as(config);
    }
    return failed;
}

static const struct rs_option managed_options[] = {
    RS_OPTION_BOOLEAN_ROW(struct managed_config, charged, "1",
                          "1: counts as device memory against a limit; 0: as host memory, for a "
                          "program's spill from a full device"),
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
    .create = managed_create,
};
