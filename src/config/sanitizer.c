/* SPDX-License-Identifier: Apache-2.0 */
#include "config/sanitizer.h"

#include "base/log.h"
#include "base/process.h"

/* Variables that compute-sanitizer sets for the processes that it runs: since 2025, and before. */
static bool is_there(void)
{
    return rs_environment_get("NV_SANITIZER_INJECTION_PORT_BASE") ||
           rs_environment_get("NV_SANITIZER_INJECTION_PORT_RANGE_BEGIN");
}

static bool shares_allocations(struct rs_expression *stack)
{
    return rs_expression_find(stack, &rs_mr_descriptor_pool) ||
           rs_expression_find(stack, &rs_mr_descriptor_arena) ||
           rs_expression_find(stack, &rs_mr_descriptor_fixed_size) ||
           rs_expression_find(stack, &rs_mr_descriptor_binning) ||
           rs_expression_find(stack, &rs_mr_descriptor_virtual);
}

void rs_sanitizer_advise(const struct rs_config *config)
{
    if (!is_there())
        return;
    for (size_t i = 0; i <= RS_DEVICES_MAX; i++)
        if (shares_allocations(config->stack[RS_KIND_DEVICE][i])) {
            rs_log(
                "compute-sanitizer takes a pool for one allocation and misses errors between its "
                "blocks: set RMM_RESOURCE=cuda; or RMM_FREE=wait "
                "RMM_RESOURCE='poison(pool(cuda))' finds stray writes without compute-sanitizer");
            return;
        }
}
