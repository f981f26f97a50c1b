/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <signal.h>
#include <string.h>

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

TEST(refuses_bad_requests)
{
    CUdeviceptr pointer;
    assert_int_equal(cuMemAlloc(&pointer, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemAlloc(NULL, 16), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemAlloc(&pointer, (size_t)1 << 60), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(cuMemAlloc(&pointer, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST(refuses_wrong_frees)
{
    CUdeviceptr pointer;
    int local = 0;
    OK(cuMemAlloc(&pointer, 4096));
    OK(cuMemFree(0));
    assert_int_equal(cuMemFree(pointer + 16), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemFree((CUdeviceptr)(uintptr_t)&local), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(pointer));
    assert_int_equal(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE);
}

TEST(allocates_only_in_a_context_and_frees_anywhere)
{
    CUdeviceptr pointer, other;
    OK(cuMemAlloc(&pointer, 4096));
    OK(cuCtxSetCurrent(NULL));
    assert_int_equal(cuMemAlloc(&other, 16), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuMemFree(pointer));
    OK(cuCtxSetCurrent(*state));
}

TEST(small_blocks_lie_512_apart_and_keep_their_size)
{
    CUdeviceptr a, b, base;
    size_t size;
    OK(cuMemAlloc(&a, 1000));
    OK(cuMemAlloc(&b, 1000));
    assert_int_equal(b - a, 0x400);
    OK(cuMemGetAddressRange(&base, &size, b + 999));
    assert_true(base == b && size == 1000);
    assert_int_equal(cuMemGetAddressRange(&base, &size, b + 1000), CUDA_ERROR_NOT_FOUND);
    OK(cuMemGetAddressRange(NULL, NULL, b));
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    OK(cuMemAlloc(&a, 100));
    OK(cuMemAlloc(&b, 100));
    assert_int_equal(b - a, 512);
    OK(cuMemFree(a));
    OK(cuMemFree(b));
    assert_int_equal(cuMemGetAddressRange(&base, &size, b), CUDA_ERROR_NOT_FOUND);
}

TEST(large_blocks_are_aligned_to_2_mib)
{
    CUdeviceptr small, large;
    OK(cuMemAlloc(&small, 512));
    OK(cuMemAlloc(&large, (1 << 20) + 1));
    assert_int_equal(large % (2 << 20), 0);
    OK(cuMemFree(large));
    OK(cuMemFree(small));
}

TEST(capacity_is_kept_and_comes_back)
{
    size_t before, after, total;
    CUdeviceptr pointer, other;
    OK(cuMemGetInfo(&before, &total));
    OK(cuMemGetInfo(NULL, NULL));
    OK(cuMemAlloc(&pointer, before));
    OK(cuMemGetInfo(&after, &total));
    assert_int_equal(after, 0);
    assert_int_equal(cuMemAlloc(&other, 1), CUDA_ERROR_OUT_OF_MEMORY);
    OK(cuMemFree(pointer));
    OK(cuMemGetInfo(&after, &total));
    assert_int_equal(after, before);
}

TEST(bytes_travel_in_every_direction)
{
    enum { BYTES = 3 << 20 };
    static unsigned char in[BYTES], out[BYTES];
    CUdeviceptr device, second, managed;
    for (int i = 0; i < BYTES; i++)
        in[i] = (unsigned char)(i * 7);
    OK(cuMemAlloc(&device, BYTES));
    OK(cuMemAlloc(&second, BYTES));
    OK(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemcpyHtoD(device, in, BYTES));
    OK(cuMemcpyDtoD(second, device, BYTES));
    OK(cuMemcpy(managed, second, BYTES));
    OK(cuCtxSynchronize());
    assert_memory_equal((void *)managed, in, BYTES);
    OK(cuMemcpyDtoH(out, managed, BYTES));
    assert_memory_equal(out, in, BYTES);
    OK(cuMemsetD32(device, 0x01020304, BYTES / 4));
    OK(cuMemcpyDtoH(out, device, BYTES));
    assert_int_equal(*(unsigned *)&out[BYTES - 4], 0x01020304);
    OK(cuMemFree(device));
    OK(cuMemFree(second));
    OK(cuMemFree(managed));
}

TEST(attributes_describe_the_allocation)
{
    CUdeviceptr device, managed, start_of;
    void *pinned, *host;
    CUcontext ctx;
    unsigned type, is_managed, is_ipc;
    unsigned long long first_id, second_id;
    OK(cuMemAlloc(&device, 1000));
    OK(cuMemAllocManaged(&managed, 1000, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostAlloc(&pinned, 1000, 0));
    OK(cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, device + 5));
    assert_ptr_equal(ctx, *state);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pinned));
    assert_int_equal(type, CU_MEMORYTYPE_HOST);
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, managed));
    assert_int_equal(is_managed, 1);
    OK(cuPointerGetAttribute(&is_ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, managed));
    assert_int_equal(is_ipc, 0);
    OK(cuPointerGetAttribute(&start_of, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device + 999));
    assert_true(start_of == device);
    OK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, managed));
    assert_int_equal(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, device),
                     CUDA_ERROR_INVALID_VALUE);
    OK(cuPointerGetAttribute(&first_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, device));
    OK(cuMemFree(device));
    OK(cuMemAlloc(&device, 1000));
    OK(cuPointerGetAttribute(&second_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, device));
    assert_true(first_id != second_id);
    OK(cuMemFree(device));
    OK(cuMemFree(managed));
    OK(cuMemFreeHost(pinned));
}

static unsigned answer(CUpointer_attribute attribute, CUdeviceptr pointer)
{
    unsigned value = 77;
    OK(cuPointerGetAttribute(&value, attribute, pointer));
    return value;
}

/* What an H200 says of memory of every kind. */
TEST(attributes_are_those_of_the_kind_of_memory)
{
    CUpointer_attribute asked[] = {
        CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    CUdeviceptr device, managed, answers[4] = {1, 1, 1, 1};
    CUDA_POINTER_ATTRIBUTE_P2P_TOKENS tokens;
    void *pinned, *data[] = {&answers[0], &answers[1], &answers[2], &answers[3]};
    unsigned flags;
    size_t mapped;
    OK(cuMemAlloc(&device, 1000));
    OK(cuMemAllocManaged(&managed, 1000, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostAlloc(&pinned, 1000, 0));
    assert_int_equal(answer(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, device), 0);
    assert_int_equal(answer(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, managed), 1);
    assert_int_equal(answer(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, device), 1);
    assert_int_equal(answer(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, managed), 0);
    assert_int_equal(answer((CUpointer_attribute)21 /* decompression */, device), 1);
    assert_int_equal(answer((CUpointer_attribute)21, managed), 0);
    OK(cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, managed));
    assert_int_equal(
        cuPointerGetAttribute(&tokens, CU_POINTER_ATTRIBUTE_P2P_TOKENS, (CUdeviceptr)pinned),
        CUDA_ERROR_INVALID_VALUE);
    OK(cuMemHostGetFlags(&flags, (void *)managed));
    assert_int_equal(flags, CU_MEMHOSTALLOC_DEVICEMAP);
    OK(cuPointerGetAttribute(&mapped, (CUpointer_attribute)18 /* MAPPING_SIZE */, device));
    assert_int_equal(mapped, 2 << 20);
    OK(cuPointerGetAttributes(4, asked, data, (CUdeviceptr)&device));
    assert_true(answers[0] == (CUdeviceptr)&device && answers[1] == 1 && answers[2] == 0);
    assert_true(answers[3] == 1);
    OK(cuMemFree(device));
    OK(cuMemFree(managed));
    OK(cuMemFreeHost(pinned));
}

static sigjmp_buf after_fault;

static void fault_comes(int number)
{
    siglongjmp(after_fault, number);
}

TEST(host_faults_on_device_memory)
{
    CUdeviceptr pointer;
    struct sigaction action = {.sa_handler = fault_comes}, before;
    OK(cuMemAlloc(&pointer, 64));
    OK(sigaction(SIGSEGV, &action, &before));
    int number = sigsetjmp(after_fault, 1);
    if (!number)
        number = *(volatile char *)pointer + 1000;
    OK(sigaction(SIGSEGV, &before, NULL));
    assert_int_equal(number, SIGSEGV);
    OK(cuMemFree(pointer));
}

TEST(pitch_is_a_multiple_of_512)
{
    CUdeviceptr pointer;
    size_t pitch;
    OK(cuMemAllocPitch(&pointer, &pitch, 513, 3, 4));
    assert_int_equal(pitch, 1024);
    OK(cuMemFree(pointer));
    assert_int_equal(cuMemAllocPitch(&pointer, &pitch, 513, 3, 5), CUDA_ERROR_INVALID_VALUE);
}

TEST(pinned_memory_keeps_flags_inside)
{
    void *pinned;
    unsigned flags;
    OK(cuMemHostAlloc(&pinned, 8192, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED));
    OK(cuMemHostGetFlags(&flags, (char *)pinned + 100));
    assert_int_equal(flags, 7);
    assert_int_equal(cuMemFreeHost((char *)pinned + 100), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeHost(pinned));
}

TEST(free_waits_for_streams_of_its_context_only)
{
    CUdeviceptr mine, theirs;
    CUcontext other;
    CUstream stream;
    unsigned *flag = flag_new();
    OK(cuMemAlloc(&mine, 4096));
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuMemAlloc(&theirs, 4096));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(spin_until(stream, flag));
    OK(cuMemFree(mine)); /* would hang if it waited for the other context */
    assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    flag_raise(flag);
    OK(cuMemFree(theirs));
    OK(cuStreamQuery(stream));
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(*state));
    OK(cuMemFreeHost(flag));
}

TEST(memory_dies_with_its_context)
{
    CUdeviceptr pointer;
    CUcontext other;
    OK(cuCtxCreate(&other, NULL, 0, 0));
    OK(cuMemAlloc(&pointer, 4096));
    OK(cuCtxDestroy(other));
    OK(cuCtxSetCurrent(*state));
    assert_int_equal(cuMemFree(pointer), CUDA_ERROR_INVALID_VALUE);
}

TEST(ipc_handle_is_that_of_the_allocation)
{
    CUdeviceptr pointer, managed;
    CUipcMemHandle whole, inside;
    OK(cuMemAlloc(&pointer, 4096));
    OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    OK(cuIpcGetMemHandle(&whole, pointer));
    OK(cuIpcGetMemHandle(&inside, pointer + 100));
    assert_memory_equal(&whole, &inside, sizeof(whole));
    assert_int_equal(cuIpcGetMemHandle(&whole, managed), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(pointer));
    OK(cuMemFree(managed));
}

TEST(stream_ordered_memory_mixes_with_the_other)
{
    CUdeviceptr async, plain, managed;
    CUstream stream;
    unsigned *flag = flag_new();
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&plain, 4096));
    OK(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    OK(spin_until(stream, flag));
    OK(cuMemAllocAsync(&async, 4096, stream));
    OK(cuMemFree(async)); /* does not wait */
    OK(cuMemFreeAsync(plain, stream));
    assert_int_equal(cuMemFreeAsync(plain, stream), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemFreeAsync(managed, stream), CUDA_ERROR_NOT_SUPPORTED);
    flag_raise(flag);
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy(stream));
    OK(cuMemFree(managed));
    OK(cuMemFreeHost(flag));
}
