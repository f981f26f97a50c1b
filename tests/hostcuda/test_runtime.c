/* SPDX-License-Identifier: Apache-2.0 */
/* The test runtime, linked shared in one program and static in another. */
#include "../unit/unit.h"

#include "hostcudart.h"

#define OK(call) assert_int_equal((call), cudaSuccess)

TEST(versions_are_those_of_13_0)
{
    int runtime, driver;
    OK(cudaRuntimeGetVersion(&runtime));
    OK(cudaDriverGetVersion(&driver));
    assert_int_equal(runtime, 13000);
    assert_int_equal(driver, 13000);
}

TEST(memory_holds_what_a_kernel_wrote)
{
    unsigned *words, out[256];
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc((void **)&words, sizeof(out)));
    OK(hostcudaFill32(words, 256, 41, stream));
    OK(hostcudaAddOne(words, 256, stream));
    OK(cudaMemcpyAsync(out, words, sizeof(out), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < 256; i++)
        assert_int_equal(out[i], 42);
    OK(cudaFree(words));
    OK(cudaStreamDestroy(stream));
}

TEST(failure_is_kept_once)
{
    void *pointer = &pointer;
    assert_int_equal(cudaMalloc(&pointer, (size_t)1 << 60), cudaErrorMemoryAllocation);
    assert_int_equal(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    OK(cudaMalloc(&pointer, 0));
    assert_null(pointer);
    OK(cudaFree(NULL));
    assert_int_equal(cudaFree(&pointer), cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(pointers_are_told_apart)
{
    struct cudaPointerAttributes attributes;
    void *device, *pinned, *managed;
    OK(cudaMalloc(&device, 100));
    OK(cudaMallocHost(&pinned, 100));
    OK(cudaMallocManaged(&managed, 100, cudaMemAttachGlobal));
    OK(cudaPointerGetAttributes(&attributes, device));
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    OK(cudaPointerGetAttributes(&attributes, pinned));
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    OK(cudaPointerGetAttributes(&attributes, managed));
    assert_int_equal(attributes.type, cudaMemoryTypeManaged);
    OK(cudaPointerGetAttributes(&attributes, &attributes));
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
    OK(cudaFree(device));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(managed));
}

TEST(reset_frees_and_the_runtime_starts_again)
{
    void *before, *after;
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&before, 100));
    OK(cudaDeviceReset());
    assert_int_equal(cudaFree(before), cudaErrorInvalidValue);
    OK(cudaMalloc(&after, 100));
    OK(cudaFree(after));
    cudaGetLastError();
}

TEST(stream_ordered_memory_holds_what_a_kernel_wrote)
{
    unsigned *words, out = 0;
    OK(cudaMallocAsync((void **)&words, 4, NULL));
    OK(hostcudaFill32(words, 1, 9, NULL));
    OK(cudaMemcpy(&out, words, 4, cudaMemcpyDefault));
    assert_int_equal(out, 9);
    OK(cudaFreeAsync(words, NULL));
    OK(cudaDeviceSynchronize());
}

TEST(streams_have_numbers_and_priorities)
{
    int least = -1, greatest = 1;
    unsigned long long legacy, null, other;
    cudaStream_t stream;
    OK(cudaStreamCreate(&stream));
    OK(cudaStreamGetId(NULL, &null));
    OK(cudaStreamGetId(cudaStreamLegacy, &legacy));
    OK(cudaStreamGetId(stream, &other));
    assert_int_equal(null, legacy);
    assert_int_not_equal(other, legacy);
    OK(cudaStreamDestroy(stream));
    OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    assert_true(greatest < least);
}

TEST(entry_points_come_from_the_driver)
{
    void *address = NULL;
    enum cudaDriverEntryPointQueryResult status;
    OK(cudaGetDriverEntryPointByVersion("cuMemAlloc", &address, 3020, 0, &status));
    assert_non_null(address);
    assert_int_equal(status, cudaDriverEntryPointSuccess);
}
