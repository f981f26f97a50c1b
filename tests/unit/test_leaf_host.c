/* SPDX-License-Identifier: Apache-2.0 */
/* The leaves that ask no driver for memory: `system` and `simulated`. */
#include "leaf_site.h"

FIXTURE(device_start, NULL);

TEST(line_55_system_is_refused_where_unsupported)
{
    struct rs_environment environment = {.total_bytes = GIB};
    struct rs_allocation block;
    struct site site;
    char line[256];

    device.is_pageable = false;
    assert_false(
        options_are_valid(&rs_mr_descriptor_system, &environment, NULL, line, sizeof(line)));
    assert_non_null(strstr(line, "HMM"));
    device.is_pageable = true;
    make(&site, &rs_mr_descriptor_system, NULL);
    block = take(&site, 5 * MIB);
    assert_int_equal(block.address % (2 * MIB), 0);
    memset((void *)(uintptr_t)block.address, 7, 5 * MIB);
    assert_int_equal(atomic_load(&site.device_account.charged_bytes), 0);
    give(&site, &block);
    end(&site);
    assert_int_equal(device.asked, 0);
}

TEST(simulated_memory_has_a_size_and_reuses_addresses)
{
    struct rs_allocation block[5];
    struct site site;

    make(&site, &rs_mr_descriptor_simulated, OPTIONS("size=10MiB"));
    for (unsigned i = 0; i < 5; i++)
        block[i] = take(&site, 2 * MIB);
    refuse(&site, 1, CUDA_ERROR_OUT_OF_MEMORY);
    give(&site, &block[3]);
    give(&site, &block[1]);
    refuse(&site, 4 * MIB + 1, CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(take(&site, MIB).address, block[1].address);
    assert_int_equal(take(&site, MIB).address, block[1].address + MIB);
    give(&site, &block[2]); /* merges with what lies after it */
    assert_int_equal(take(&site, 4 * MIB).address, block[2].address);
    end(&site);
    assert_int_equal(device.asked, 0);
    make(&site, &rs_mr_descriptor_simulated, NULL);
    (void)take(&site, 100 * GIB); /* no size: as large as an address space */
    end(&site);
}
