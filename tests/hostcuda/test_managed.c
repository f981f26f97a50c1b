/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory on a device of 64 MiB. */
#include "check.h"
#include "hostcuda.h"

#define MIB ((size_t)1 << 20)

static int start(void **state)
{
    *state = use_primary();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    drop_primary();
    return 0;
}

GROUP_FIXTURE(start, stop);

TEST(may_exceed_the_device_and_moves_by_use)
{
    CUdeviceptr managed;
    unsigned long long in_before, out_before, in, out;
    OK(cuMemAllocManaged(&managed, 128 * MIB, CU_MEM_ATTACH_GLOBAL));
    hostcuda_migrations(&in_before, &out_before);
    OK(cuMemsetD32(managed, 1, 8 * MIB / 4));
    OK(cuCtxSynchronize());
    hostcuda_migrations(&in, &out);
    assert_int_equal(in - in_before, 4);
    assert_int_equal(out - out_before, 0);
    for (size_t at = 0; at < 128 * MIB; at += 2 * MIB)
        OK(fill32(NULL, managed + at, 4, (unsigned)(at / MIB)));
    OK(cuCtxSynchronize());
    hostcuda_migrations(&in, &out);
    assert_true(out - out_before >= 32); /* it cannot all have stayed */
    for (size_t at = 0; at < 128 * MIB; at += 2 * MIB)
        assert_int_equal(*(unsigned *)(managed + at), at / MIB);
    OK(cuMemFree(managed));
}

TEST(makes_room_for_device_memory)
{
    CUdeviceptr managed, device;
    size_t free_bytes;
    OK(cuMemGetInfo(&free_bytes, NULL));
    OK(cuMemAllocManaged(&managed, 32 * MIB, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemsetD32(managed, 1, 32 * MIB / 4));
    OK(cuCtxSynchronize());
    OK(cuMemAlloc(&device, free_bytes));
    OK(cuMemFree(device));
    OK(cuMemFree(managed));
}

TEST(prefetch_moves_both_ways)
{
    CUdeviceptr managed;
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST};
    unsigned long long in_before, out_before, in, out;
    OK(cuMemAllocManaged(&managed, 8 * MIB, CU_MEM_ATTACH_GLOBAL));
    hostcuda_migrations(&in_before, &out_before);
    OK(cuMemPrefetchAsync(managed, 8 * MIB, device, 0, NULL));
    OK(cuStreamSynchronize(NULL));
    OK(cuMemPrefetchAsync(managed, 8 * MIB, host, 0, NULL));
    OK(cuStreamSynchronize(NULL));
    hostcuda_migrations(&in, &out);
    assert_int_equal(in - in_before, 4);
    assert_int_equal(out - out_before, 4);
    assert_int_equal(cuMemPrefetchAsync(managed, 16 * MIB, host, 0, NULL),
                     CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(managed));
}

TEST(attach_wants_a_whole_allocation)
{
    CUdeviceptr managed;
    OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    OK(cuStreamAttachMemAsync(NULL, managed, 0, CU_MEM_ATTACH_HOST));
    OK(cuStreamAttachMemAsync(NULL, managed, 4096, CU_MEM_ATTACH_GLOBAL));
    assert_int_equal(cuStreamAttachMemAsync(NULL, managed, 512, CU_MEM_ATTACH_GLOBAL),
                     CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuStreamAttachMemAsync(NULL, managed + 512, 0, CU_MEM_ATTACH_GLOBAL),
                     CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(managed));
}

static int range_attribute(CUdeviceptr at, size_t bytes, CUmem_range_attribute attribute)
{
    int value = 77;
    OK(cuMemRangeGetAttribute(&value, sizeof(value), attribute, at, bytes));
    return value;
}

TEST(advice_is_of_pages_and_ends_with_the_memory)
{
    CUdeviceptr managed, again;
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST}, none = {.type = 0};
    int accesses[3];
    OK(cuMemAllocManaged(&managed, 16384, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemAdvise(managed + 5000, 1, CU_MEM_ADVISE_SET_READ_MOSTLY, none));
    assert_int_equal(range_attribute(managed, 16384, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
    assert_int_equal(range_attribute(managed + 4096, 4096, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
    OK(cuMemAdvise(managed, 16384, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
    OK(cuMemAdvise(managed, 16384, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
    OK(cuMemAdvise(managed, 16384, CU_MEM_ADVISE_SET_ACCESSED_BY, host));
    OK(cuMemPrefetchAsync(managed, 16384, host, 0, NULL));
    OK(cuMemRangeGetAttribute(accesses, sizeof(accesses), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                              managed, 16384));
    assert_int_equal(accesses[0], 0);
    assert_int_equal(accesses[1], CU_DEVICE_CPU);
    assert_int_equal(accesses[2], CU_DEVICE_INVALID);
    assert_int_equal(range_attribute(managed, 16384, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), 0);
    assert_int_equal(range_attribute(managed, 9, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION),
                     CU_DEVICE_CPU);
    assert_int_equal(cuMemAdvise(managed, 16385, CU_MEM_ADVISE_SET_READ_MOSTLY, none),
                     CUDA_ERROR_INVALID_VALUE);
    device.id = 5;
    assert_int_equal(cuMemAdvise(managed, 16384, CU_MEM_ADVISE_SET_ACCESSED_BY, device),
                     CUDA_ERROR_INVALID_DEVICE);
    OK(cuMemFree(managed));
    OK(cuMemAllocManaged(&again, 16384, CU_MEM_ATTACH_GLOBAL));
    assert_int_equal(again, managed);
    assert_int_equal(range_attribute(again + 4096, 4096, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 0);
    assert_int_equal(range_attribute(again, 16384, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION),
                     CU_DEVICE_INVALID);
    OK(cuMemFree(again));
}
