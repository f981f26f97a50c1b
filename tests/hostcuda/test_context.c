/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts on two devices: primary and created ones, green ones, peers. */
#include "check.h"
#include "hostcuda.h"

static CUcontext first, second;

static int start(void **state)
{
    (void)state;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    first = use_primary();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    OK(cuDevicePrimaryCtxRelease(1));
    drop_primary();
    return 0;
}

GROUP_FIXTURE(start, stop);

TEST(primary_is_counted)
{
    CUcontext again;
    unsigned flags;
    int active;
    OK(cuDevicePrimaryCtxRetain(&again, 1));
    assert_ptr_equal(again, second);
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 1);
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    assert_int_equal(active, 0);
    assert_int_equal(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRetain(&second, 1));
}

TEST(current_contexts_are_a_stack)
{
    CUcontext ctx, popped;
    CUdevice device;
    OK(cuCtxPushCurrent(second));
    OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
    OK(cuCtxPopCurrent(&popped));
    assert_ptr_equal(popped, second);
    OK(cuCtxGetCurrent(&ctx));
    assert_ptr_equal(ctx, first);
}

TEST(handle_of_a_destroyed_context_is_used_again_with_another_id)
{
    CUcontext a, b;
    unsigned long long a_id, b_id;
    OK(cuCtxCreate(&a, NULL, 0, 0));
    OK(cuCtxGetId(a, &a_id));
    OK(cuCtxDestroy(a));
    OK(cuCtxCreate(&b, NULL, 0, 0));
    OK(cuCtxGetId(b, &b_id));
    assert_ptr_equal(a, b);
    assert_true(a_id != b_id);
    OK(cuCtxDestroy(b));
}

static CUgreenCtx green_new(CUcontext *ctx)
{
    CUgreenCtx green;
    CUdevResource all, part;
    CUdevResourceDesc desc;
    unsigned groups = 1;
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, 16));
    OK(cuDevResourceGenerateDesc(&desc, &part, 1));
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(ctx, green));
    return green;
}

TEST(green_work_is_seen_as_measured)
{
    CUcontext ctx, owner;
    CUgreenCtx green = green_new(&ctx);
    CUevent event;
    CUdeviceptr memory;
    unsigned long long id, green_id;
    unsigned *flag = flag_new();
    assert_ptr_not_equal(ctx, first);
    OK(cuCtxGetId(first, &id));
    OK(cuCtxGetId(ctx, &green_id));
    assert_true(id != green_id);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxSetCurrent(ctx));
    OK(cuMemAlloc(&memory, 4096));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
    assert_ptr_equal(owner, first);
    OK(spin_until(NULL, flag)); /* the green context's NULL stream */
    OK(cuCtxSetCurrent(first));
    OK(cuStreamQuery(NULL)); /* the primary's says idle */
    OK(cuCtxRecordEvent(first, event));
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    flag_raise(flag);
    OK(cuMemFree(memory)); /* waits for the green context */
    OK(cuCtxSetCurrent(ctx));
    OK(cuStreamQuery(NULL));
    OK(cuCtxSetCurrent(first));
    OK(cuEventSynchronize(event));
    OK(cuEventDestroy(event));
    OK(cuMemFreeHost(flag));
    OK(cuGreenCtxDestroy(green));
}

TEST(copies_cross_devices_kernels_need_permission)
{
    CUdeviceptr near, far;
    CUcontext ctx;
    int can;
    unsigned value = 0;
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    assert_int_equal(can, 1);
    OK(cuCtxSetCurrent(second));
    OK(cuMemAlloc(&far, 4096));
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(cuMemAlloc(&near, 4096));
    OK(cuMemsetD32(near, 3, 1));
    OK(cuMemcpyDtoD(far, near, 4));
    OK(cuMemcpyDtoH(&value, far, 4));
    assert_int_equal(value, 3);
    OK(cuCtxEnablePeerAccess(second, 0));
    assert_int_equal(cuCtxEnablePeerAccess(second, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    OK(fill32(NULL, far, 1, 4));
    OK(cuCtxSynchronize());
    OK(cuCtxDisablePeerAccess(second));
    assert_int_equal(cuCtxDisablePeerAccess(second), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
    OK(fill32(NULL, far, 1, 4));
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxDestroy(ctx));
    OK(cuCtxSetCurrent(second));
    OK(cuMemFree(far));
    OK(cuCtxSetCurrent(first));
}

TEST(a_pools_memory_is_reached_by_what_the_pool_says)
{
    CUdeviceptr far;
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUcontext ctx;
    OK(cuCtxSetCurrent(second));
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&far, 4096, pool, NULL));
    OK(cuCtxSynchronize());
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(cuMemPoolSetAccess(pool, &access, 1));
    OK(fill32(NULL, far, 1, 4)); /* without access between the contexts */
    OK(cuCtxSynchronize());
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cuMemPoolSetAccess(pool, &access, 1));
    OK(cuCtxEnablePeerAccess(second, 0));
    OK(fill32(NULL, far, 1, 4));
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxDestroy(ctx));
    OK(cuCtxSetCurrent(second));
    OK(cuMemFree(far));
    OK(cuMemPoolDestroy(pool));
    OK(cuCtxSetCurrent(first));
}

TEST(a_context_takes_all_with_it)
{
    CUcontext ctx;
    CUdeviceptr memory;
    CUevent event;
    CUstream stream;
    void *pinned;
    unsigned allocations = hostcuda_live_allocations(), events = hostcuda_live_events();
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(cuMemAlloc(&memory, 512));
    OK(cuMemAllocManaged(&memory, 512, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemHostAlloc(&pinned, 512, 0));
    OK(cuEventCreate(&event, 0));
    OK(cuStreamCreate(&stream, 0));
    OK(spin_us(stream, 1000));
    OK(cuCtxDestroy(ctx));
    assert_int_equal(hostcuda_live_allocations(), allocations);
    assert_int_equal(hostcuda_live_events(), events);
    assert_int_equal(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    OK(cuCtxSetCurrent(first));
}
