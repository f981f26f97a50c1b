/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <sys/resource.h>
#include <unistd.h>

#define BYTES ((size_t)2 << 20)

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

static const CUmemAllocationProp prop = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
};

static const CUmemAccessDesc readwrite = {
    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

TEST(two_mappings_of_one_handle_show_the_same_bytes)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle;
    unsigned value = 0;
    OK(cuMemAddressReserve(&range, 2 * BYTES, 0, 0, 0));
    OK(cuMemCreate(&handle, BYTES, &prop, 0));
    OK(cuMemMap(range, BYTES, 0, handle, 0));
    OK(cuMemMap(range + BYTES, BYTES, 0, handle, 0));
    OK(cuMemSetAccess(range, 2 * BYTES, &readwrite, 1));
    OK(cuMemsetD32(range + 64, 77, 1));
    OK(cuMemcpyDtoH(&value, range + BYTES + 64, 4));
    assert_int_equal(value, 77);
    OK(cuMemUnmap(range, BYTES));
    OK(cuMemUnmap(range + BYTES, BYTES));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(range, 2 * BYTES));
}

TEST(bytes_survive_a_move_to_other_addresses)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle;
    unsigned value = 0;
    OK(cuMemAddressReserve(&range, 2 * BYTES, 0, 0, 0));
    OK(cuMemCreate(&handle, BYTES, &prop, 0));
    OK(cuMemMap(range, BYTES, 0, handle, 0));
    OK(cuMemSetAccess(range, BYTES, &readwrite, 1));
    OK(cuMemsetD32(range, 5, 1));
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(range, BYTES));
    OK(cuMemMap(range + BYTES, BYTES, 0, handle, 0));
    OK(cuMemRelease(handle)); /* the mapping holds it */
    OK(cuMemSetAccess(range + BYTES, BYTES, &readwrite, 1));
    OK(cuMemcpyDtoH(&value, range + BYTES, 4));
    assert_int_equal(value, 5);
    OK(cuMemUnmap(range + BYTES, BYTES));
    OK(cuMemAddressFree(range, 2 * BYTES));
}

TEST(handles_count_against_the_capacity)
{
    CUmemGenericAllocationHandle handle, other;
    size_t before, after;
    OK(cuMemGetInfo(&before, NULL));
    OK(cuMemCreate(&handle, before / BYTES * BYTES, &prop, 0));
    assert_int_equal(cuMemCreate(&other, BYTES, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemRelease(handle));
    OK(cuMemGetInfo(&after, NULL));
    assert_int_equal(before, after);
}

TEST(mapped_memory_is_no_allocation_of_the_other_kind)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle;
    CUipcMemHandle ipc;
    unsigned is_capable;
    OK(cuMemAddressReserve(&range, BYTES, 0, 0, 0));
    OK(cuMemCreate(&handle, BYTES, &prop, 0));
    OK(cuMemMap(range, BYTES, 0, handle, 0));
    assert_int_equal(cuMemFree(range), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuIpcGetMemHandle(&ipc, range), CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&is_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, range));
    assert_int_equal(is_capable, 0);
    assert_int_equal(cuPointerSetAttribute(&is_capable, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, range),
                     CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(cuMemAddressFree(range, BYTES), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemUnmap(range, BYTES));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(range, BYTES));
}

TEST(access_without_permission_faults)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle;
    CUcontext ctx;
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(cuMemAddressReserve(&range, BYTES, 0, 0, 0));
    OK(cuMemCreate(&handle, BYTES, &prop, 0));
    OK(cuMemMap(range, BYTES, 0, handle, 0));
    OK(fill32(NULL, range, 16, 1));
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxDestroy(ctx));
    OK(cuCtxSetCurrent(*state));
    OK(cuMemUnmap(range, BYTES));
    OK(cuMemRelease(handle));
    OK(cuMemAddressFree(range, BYTES));
}

TEST(shared_handle_carries_the_bytes)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle, imported;
    int fd;
    unsigned value = 0;
    OK(cuMemAddressReserve(&range, 2 * BYTES, 0, 0, 0));
    OK(cuMemCreate(&handle, BYTES, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(cuMemMap(range, BYTES, 0, handle, 0));
    OK(cuMemMap(range + BYTES, BYTES, 0, imported, 0));
    OK(cuMemSetAccess(range, 2 * BYTES, &readwrite, 1));
    OK(cuMemsetD32(range, 9, 1));
    OK(cuMemcpyDtoH(&value, range + BYTES, 4));
    assert_int_equal(value, 9);
    OK(cuMemUnmap(range, 2 * BYTES));
    OK(cuMemRelease(handle));
    OK(cuMemRelease(imported));
    OK(cuMemAddressFree(range, 2 * BYTES));
}

TEST(memory_that_was_not_made_for_it_is_not_shared)
{
    CUmemAllocationProp plain = prop;
    CUmemGenericAllocationHandle handle;
    int fd = -1;
    plain.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    OK(cuMemCreate(&handle, BYTES, &plain, 0));
    assert_int_equal(
        cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(fd, -1);
    OK(cuMemRelease(handle));
}

TEST(only_a_shared_handle_takes_a_descriptor_of_the_program)
{
    CUmemGenericAllocationHandle handle, imported;
    struct rlimit before, none;
    int fd, other;
    OK(cuMemCreate(&handle, BYTES, &prop, 0));
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    CUresult shared =
        cuMemExportToShareableHandle(&other, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    CUresult opened = cuMemImportFromShareableHandle(&imported, (void *)(uintptr_t)fd,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(shared, CUDA_ERROR_OPERATING_SYSTEM);
    OK(opened);
    close(fd);
    OK(cuMemRelease(handle));
    OK(cuMemRelease(imported));
}
