/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <string.h>

static CUmemoryPool pool;
static CUstream stream;

static int start(void **state)
{
    *state = use_primary();
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return 0;
}

static int stop(void **state)
{
    (void)state;
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy(stream));
    OK(cuMemPoolDestroy(pool));
    drop_primary();
    return 0;
}

FIXTURE(start, stop);

static cuuint64_t attribute(CUmemPool_attribute which)
{
    cuuint64_t value = 0;
    OK(cuMemPoolGetAttribute(pool, which, &value));
    return value;
}

static size_t free_bytes(void)
{
    size_t bytes;
    OK(cuMemGetInfo(&bytes, NULL));
    return bytes;
}

TEST(pool_counts_what_is_in_use)
{
    CUdeviceptr block;
    OK(cuMemAllocFromPoolAsync(&block, 4 << 20, pool, stream));
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4 << 20);
    OK(cuMemFreeAsync(block, stream));
    OK(cuStreamSynchronize(stream));
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 4 << 20);
}

TEST(threshold_decides_what_is_kept_and_trim_gives_it_back)
{
    CUdeviceptr block;
    cuuint64_t threshold = UINT64_MAX;
    size_t before = free_bytes();
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemAllocFromPoolAsync(&block, 8 << 20, pool, stream));
    OK(cuMemFreeAsync(block, stream));
    OK(cuStreamSynchronize(stream));
    assert_int_equal(before - free_bytes(), 8 << 20);
    OK(cuMemPoolTrimTo(pool, 0));
    assert_int_equal(before, free_bytes());
}

TEST(a_full_device_takes_what_pools_hold)
{
    CUdeviceptr block, all;
    cuuint64_t threshold = UINT64_MAX;
    size_t before = free_bytes();
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemAllocFromPoolAsync(&block, 8 << 20, pool, stream));
    OK(cuMemFreeAsync(block, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuMemAlloc(&all, before));
    OK(cuMemFree(all));
}

TEST(a_refused_allocation_leaves_what_it_mapped)
{
    CUdeviceptr block;
    cuuint64_t threshold = UINT64_MAX;
    size_t before = free_bytes();
    assert_int_equal(cuMemAllocFromPoolAsync(&block, before + (2 << 20), pool, stream),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(free_bytes(), before);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    assert_int_equal(cuMemAllocFromPoolAsync(&block, before + (2 << 20), pool, stream),
                     CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
                     before / (2 << 20) * (2 << 20));
    OK(cuMemPoolTrimTo(pool, 0));
    assert_int_equal(free_bytes(), before);
}

TEST(memory_is_gone_only_when_the_stream_comes_there)
{
    CUdeviceptr block;
    unsigned *flag = flag_new();
    OK(cuMemAllocFromPoolAsync(&block, 4 << 20, pool, stream));
    OK(spin_until(stream, flag));
    OK(cuMemFreeAsync(block, stream));
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4 << 20);
    flag_raise(flag);
    OK(cuStreamSynchronize(stream));
    assert_int_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    OK(cuMemFreeHost(flag));
}

TEST(pointers_know_their_pool_and_have_no_ipc)
{
    CUdeviceptr block;
    CUmemoryPool found;
    CUipcMemHandle handle;
    unsigned is_capable;
    OK(cuMemAllocFromPoolAsync(&block, 4096, pool, stream));
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    assert_ptr_equal(found, pool);
    OK(cuPointerGetAttribute(&is_capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, block));
    assert_int_equal(is_capable, 0);
    assert_int_equal(cuIpcGetMemHandle(&handle, block), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree(block));
}

/* As an H200 does (facts_h200.txt): a free that is refused has freed nothing, and a thread in
 * relaxed mode may do it all. */
TEST(a_capture_elsewhere_forbids_all_but_to_name_the_pool)
{
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUstream capturing;
    CUdeviceptr block, more;
    CUmemoryPool found;
    CUgraph graph;
    cuuint64_t bytes;
    OK(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
    OK(cuMemAllocFromPoolAsync(&block, 4096, pool, stream));
    for (unsigned i = 0; i < 4; i++) {
        OK(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuDeviceGetMemPool(&found, 0));
        assert_int_equal(
            i == 0   ? cuMemAllocFromPoolAsync(&more, 4096, pool, stream)
            : i == 1 ? cuMemFreeAsync(block, stream)
            : i == 2 ? cuMemPoolTrimTo(pool, 0)
                     : cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &bytes),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert_int_equal(cuStreamEndCapture(capturing, &graph),
                         CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
    OK(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuThreadExchangeStreamCaptureMode(&relaxed));
    OK(cuMemAllocFromPoolAsync(&more, 4096, pool, stream));
    OK(cuMemFreeAsync(more, stream));
    OK(cuMemFreeAsync(block, stream));
    assert_int_not_equal(attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuThreadExchangeStreamCaptureMode(&relaxed));
    OK(cuStreamEndCapture(capturing, &graph));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy(capturing));
}

TEST(memory_survives_a_context_reset)
{
    CUdeviceptr block;
    CUcontext ctx;
    OK(cuMemAllocFromPoolAsync(&block, 4096, pool, stream));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(cuCtxSetCurrent(ctx));
    OK(cuMemFree(block));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
}

TEST(managed_pools_give_managed_memory)
{
    CUdeviceptr block;
    CUmemoryPool managed, found;
    CUmemPoolProps props = {.allocType = (CUmemAllocationType)2, /* of 13.0's headers */
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    unsigned is_managed = 0;
    size_t before = free_bytes();
    OK(cuMemPoolCreate(&managed, &props));
    OK(cuMemAllocFromPoolAsync(&block, 4 << 20, managed, stream));
    OK(cuStreamSynchronize(stream));
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, block));
    OK(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    assert_true(is_managed);
    assert_ptr_equal(found, managed);
    memset((void *)block, 7, 4 << 20); /* the host reaches it */
    assert_int_equal(before, free_bytes());
    OK(cuMemFreeAsync(block, stream));
    OK(cuMemPoolDestroy(managed));
}
