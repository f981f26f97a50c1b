/* SPDX-License-Identifier: Apache-2.0 */
/* async_managed: a driver pool of managed memory that prefers its device.  RMM's
 * cuda_async_managed_memory_resource, over a pool of our own in place of the device's default one.
 */
#include "driver/driver.h"
#include "resource/leaf/async.h"

enum { FIRST_DRIVER = 13000 }; /* the first driver with pools of managed memory */

static bool driver_has_managed_pools(const struct rs_environment *environment)
{
    int version = 0;

    return rs_driver.cuMemPoolCreate && rs_driver.cuDriverGetVersion &&
           rs_driver.cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= FIRST_DRIVER &&
           rs_driver_device_has(environment->device, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) &&
           rs_driver_device_has(environment->device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
}

static bool async_managed_validate(const void *config, const struct rs_environment *environment,
                                   const struct rs_source *source,
                                   struct rs_diagnostics *diagnostics)
{
    if (environment && !driver_has_managed_pools(environment)) {
        rs_diagnose(diagnostics, source, NULL,
                    "async_managed needs managed memory pools: driver 13.0 or newer, and a device "
                    "with concurrent managed access");
        return false;
    }
    return rs_async_validate(config, environment, source, diagnostics);
}

static int async_managed_create(const struct rs_environment *environment, const void *config,
                                struct rs_mr *const *upstream, struct rs_mr **out)
{
    (void)upstream;
    return rs_async_create(&rs_mr_descriptor_async_managed, CU_MEM_ALLOCATION_TYPE_MANAGED,
                           environment, config, out);
}

const struct rs_mr_descriptor rs_mr_descriptor_async_managed = {
    .name = "async_managed",
    .aliases = {"cuda_async_managed"},
    .summary = "a stream-ordered pool of managed memory, made for this stack (driver 13.0)",
    .memory = RS_MEMORY_MANAGED,
    .overcommits = true,
    .frees = RS_FREE_AT_ONCE,
    .dies_with_context = false,
    .config_bytes = sizeof(struct rs_async_config),
    .options = rs_async_options,
    .validate = async_managed_validate,
    .create = async_managed_create,
};
