/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of leaves share: one leaf in one context, on the device of leaf_device.h. */
#pragma once

#include "unit.h"

#include "driver/fence.h"
#include "driver/stream.h"
#include "fake_leaf.h"
#include "leaf_device.h"
#include "ledger/account.h"
#include "resource/leaf/detached_leaf.h"
#include "resource/segment.h"

#include <string.h>

struct site {
    struct rs_account device_account, account;
    struct rs_own_stream own_stream;
    struct rs_sentinel sentinel;
    struct rs_environment environment;
    struct rs_mr *mr;
    struct fake_pool *pool; /* of an async leaf */
};

static inline void make(struct site *site, const struct rs_mr_descriptor *descriptor,
                        const char *const *options)
{
    int error;

    memset(site, 0, sizeof(*site));
    rs_account_begin(&site->device_account, NULL);
    rs_account_begin(&site->account, &site->device_account);
    site->environment = (struct rs_environment){
        .context = CTX,
        .own_stream = &site->own_stream,
        .account = &site->account,
        .total_bytes = DEVICE_MIB * MIB,
        .free_bytes = DEVICE_MIB * MIB,
        .sentinel = &site->sentinel,
        .first_on_device = true,
        .frees_are_ready = true,
    };
    site->mr = make_resource_at(&site->environment, descriptor, NULL, options, &error);
    assert_non_null(site->mr);
    site->pool = device.last_pool;
}

static inline size_t held(const struct site *site)
{
    return rs_account_held_bytes(&site->device_account);
}

static inline void end(struct site *site)
{
    assert_true(rs_mr_check(site->mr));
    rs_mr_destroy(site->mr, false);
    assert_int_equal(held(site), 0);
    rs_account_lose(&site->account);
    assert_int_equal(device.wrong_calls, 0);
}

static inline struct rs_allocation take(struct site *site, size_t bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(site->mr, bytes, NULL, &allocation), CUDA_SUCCESS);
    assert_int_equal(allocation.size_bytes, bytes);
    assert_int_equal(allocation.address % RS_BLOCK_ALIGNMENT, 0);
    assert_true(rs_mr_check(site->mr));
    return allocation;
}

static inline void give(struct site *site, const struct rs_allocation *allocation)
{
    assert_int_equal(rs_mr_deallocate(site->mr, allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(site->mr));
    if (rs_mr_deallocates_in_order(site->mr))
        (void)rs_mr_trim(site->mr, SIZE_MAX); /* settles */
}

static inline void refuse(struct site *site, size_t bytes, CUresult expected)
{
    static const struct rs_allocation untouched = {0xdeadbeef, 12345, (void *)0x77, NULL};
    struct rs_allocation allocation = untouched;

    assert_int_equal(rs_mr_allocate(site->mr, bytes, NULL, &allocation), expected);
    assert_memory_equal(&allocation, &untouched, sizeof(untouched));
    assert_true(rs_mr_check(site->mr));
}

static inline bool is_segment(CUdeviceptr address)
{
    struct rs_segment segment;

    return rs_segment_find(address, &segment);
}
