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

static void may_exceed_the_device_and_moves_by_use(void **state)
{
    (void)state;
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

static void makes_room_for_device_memory(void **state)
{
    (void)state;
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

static void prefetch_moves_both_ways(void **state)
{
    (void)state;
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

static void attach_wants_a_whole_allocation(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(may_exceed_the_device_and_moves_by_use),
        cmocka_unit_test(makes_room_for_device_memory),
        cmocka_unit_test(prefetch_moves_both_ways),
        cmocka_unit_test(attach_wants_a_whole_allocation),
    };
    return cmocka_run_group_tests_name("managed", tests, start, stop);
}
