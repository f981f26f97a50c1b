/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of `virtual` share: one over a fake of the driver's virtual memory management. */
#pragma once

#include "unit.h"

#include "fake_leaf.h"
#include "fake_vmm.h"
#include "ledger/account.h"
#include "resource/report.h"
#include "resource/segment.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

static struct rs_account account;
static struct rs_environment environment;

static inline struct rs_mr *make(size_t capacity_bytes, const char *const *options)
{
    struct rs_mr *mr;
    int error;

    fake_vmm_install(capacity_bytes);
    rs_account_begin(&account, NULL);
    environment = (struct rs_environment){.total_bytes = 80 * GIB,
                                          .first_on_device = true,
                                          .frees_are_ready = true,
                                          .account = &account};
    mr = make_resource_at(&environment, &rs_mr_descriptor_virtual, NULL, options, &error);
    assert_non_null(mr);
    return mr;
}

static inline void end(struct rs_mr *mr)
{
    assert_true(rs_mr_check(mr));
    rs_mr_destroy(mr, false);
    assert_true(fake_vmm_is_clean());
    assert_int_equal(rs_account_held_bytes(&account), 0);
}

static inline void assert_good(struct rs_mr *mr)
{
    assert_true(rs_mr_check(mr));
    assert_int_equal(fake_vmm.wrong_calls, 0);
    assert_int_equal(rs_account_held_bytes(&account), fake_vmm.created_bytes);
}

static inline CUresult try_take(struct rs_mr *mr, size_t size_bytes, struct rs_allocation *out)
{
    CUresult result = rs_mr_allocate(mr, size_bytes, NULL, out);
    struct rs_segment segment;

    if (result != CUDA_SUCCESS)
        return result;
    assert_int_equal(out->size_bytes, size_bytes);
    assert_int_equal(out->address % RS_BLOCK_ALIGNMENT, 0);
    assert_true(fake_vmm_is_usable(out->address, size_bytes));
    assert_true(rs_segment_find(out->address, &segment));
    fake_vmm_watch(out->address, size_bytes, true);
    return result;
}

static inline struct rs_allocation take(struct rs_mr *mr, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(try_take(mr, size_bytes, &allocation), CUDA_SUCCESS);
    assert_good(mr);
    return allocation;
}

static inline void give(struct rs_mr *mr, const struct rs_allocation *allocation)
{
    fake_vmm_watch(allocation->address, allocation->size_bytes, false);
    assert_int_equal(rs_mr_deallocate(mr, allocation, NULL), CUDA_SUCCESS);
    assert_true(rs_mr_check(mr));
}

static inline void refuse(struct rs_mr *mr, size_t size_bytes)
{
    struct rs_allocation allocation;

    assert_int_equal(rs_mr_allocate(mr, size_bytes, NULL, &allocation), CUDA_ERROR_OUT_OF_MEMORY);
    assert_good(mr);
}

static inline uint64_t counter(struct rs_mr *mr, const char *name)
{
    struct rs_report report = {.count = 0};
    uint64_t value;

    mr->ops.report(mr, &report);
    value = rs_report_value(&report, "virtual", name, UINT64_MAX);
    rs_report_release(&report);
    return value;
}

enum { BLOCKS_MAX = 64 };

static inline void take_many(struct rs_mr *mr, struct rs_allocation *blocks, size_t count,
                             size_t size_bytes, struct rs_allocation *walls)
{
    for (size_t i = 0; i < count; i++) {
        blocks[i] = take(mr, size_bytes);
        if (walls)
            walls[i] = take(mr, 32 * MIB);
    }
}

static inline void give_many(struct rs_mr *mr, const struct rs_allocation *blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        give(mr, &blocks[i * 7 % count]);
}
