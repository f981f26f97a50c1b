/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the driver itself, devices and contexts. */
#include "facts.h"

#include <stdio.h>

void facts_uninitialised(void)
{
    CUdeviceptr a = 0;
    CUcontext ctx = NULL;
    CUstream stream;
    CUevent event;
    void *memory;
    const char *name = "";
    int number = 0;
    SAY("version", CU(cuDriverGetVersion)(&number));
    SAY_YES("version_is_12_5_or_newer", number >= 12050);
    SAY("version_null", CU(cuDriverGetVersion)(NULL));
    SAY("device_count", CU(cuDeviceGetCount)(&number));
    SAY("alloc", CU(cuMemAlloc_v2)(&a, 16));
    SAY("free_of_0", CU(cuMemFree_v2)(0));
    SAY("host_alloc", CU(cuMemHostAlloc)(&memory, 16, 0));
    SAY("current", CU(cuCtxGetCurrent)(&ctx));
    SAY("stream_create", CU(cuStreamCreate)(&stream, 0));
    SAY("event_create", CU(cuEventCreate)(&event, 0));
    SAY("error_name", CU(cuGetErrorName)(CUDA_ERROR_OUT_OF_MEMORY, &name));
    facts_say("error_name_value", "%s", name);
    SAY("error_name_unknown", CU(cuGetErrorName)((CUresult)12345, &name));
    SAY("init_flags_1", CU(cuInit)(1));
    SAY("init", CU(cuInit)(0));
    SAY("init_again", CU(cuInit)(0));
}

void facts_lookup(void)
{
    static const struct {
        const char *name;
        int version;
        int flags;
        const char *symbol;
    } rows[] = {
        {"cuMemAlloc", 2000, 0, "cuMemAlloc"},
        {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
        {"cuMemAlloc", 12000, 2, "cuMemAlloc_v2"},
        {"cuMemFree", 2000, 0, "cuMemFree"},
        {"cuMemFree", 3020, 0, "cuMemFree_v2"},
        {"cuMemGetInfo", 3020, 0, "cuMemGetInfo_v2"},
        {"cuMemGetAddressRange", 3020, 0, "cuMemGetAddressRange_v2"},
        {"cuMemAllocPitch", 3020, 0, "cuMemAllocPitch_v2"},
        {"cuMemAllocHost", 3020, 0, "cuMemAllocHost_v2"},
        {"cuMemAllocAsync", 11020, 0, "cuMemAllocAsync"},
        {"cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"},
        {"cuMemFreeAsync", 11020, 2, "cuMemFreeAsync_ptsz"},
        {"cuMemAllocFromPoolAsync", 11020, 2, "cuMemAllocFromPoolAsync_ptsz"},
        {"cuMemcpyHtoD", 12000, 2, "cuMemcpyHtoD_v2_ptds"},
        {"cuStreamBeginCapture", 10000, 0, "cuStreamBeginCapture"},
        {"cuStreamBeginCapture", 10010, 0, "cuStreamBeginCapture_v2"},
        {"cuStreamBeginCapture", 10010, 2, "cuStreamBeginCapture_v2_ptsz"},
        {"cuStreamDestroy", 2000, 0, "cuStreamDestroy"},
        {"cuStreamDestroy", 4000, 0, "cuStreamDestroy_v2"},
        {"cuCtxDestroy", 2000, 0, "cuCtxDestroy"},
        {"cuCtxDestroy", 4000, 0, "cuCtxDestroy_v2"},
        {"cuCtxCreate", 3020, 0, "cuCtxCreate_v2"},
        {"cuCtxCreate", 11040, 0, "cuCtxCreate_v3"},
        {"cuCtxCreate", 12050, 0, "cuCtxCreate_v4"},
        {"cuDevicePrimaryCtxReset", 7000, 0, "cuDevicePrimaryCtxReset"},
        {"cuDevicePrimaryCtxReset", 11000, 0, "cuDevicePrimaryCtxReset_v2"},
        {"cuDevicePrimaryCtxRelease", 11000, 0, "cuDevicePrimaryCtxRelease_v2"},
        {"cuIpcOpenMemHandle", 4010, 0, "cuIpcOpenMemHandle"},
        {"cuIpcOpenMemHandle", 11000, 0, "cuIpcOpenMemHandle_v2"},
        {"cuMemAdvise", 12010, 0, "cuMemAdvise"},
        {"cuMemAdvise", 12020, 0, "cuMemAdvise_v2"},
        {"cuMemPrefetchAsync", 12020, 2, "cuMemPrefetchAsync_v2_ptsz"},
        {"cuCtxSynchronize", 12000, 0, "cuCtxSynchronize"},
        {"cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"},
        {"cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"},
        {"cuCtxRecordEvent", 12050, 0, "cuCtxRecordEvent"},
        {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
        {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
    };
    void *address;
    CUdriverProcAddressQueryResult status;
    int version = 0;
    char line[128];
    NEED(CU(cuDriverGetVersion)(&version));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(line, sizeof(line), "%s_at_%d%s", rows[i].name, rows[i].version,
                 rows[i].flags == 2 ? "_own" : "");
        address = NULL;
        CUresult result = CU(cuGetProcAddress_v2)(rows[i].name, &address, rows[i].version,
                                                  (cuuint64_t)rows[i].flags, &status);
        facts_say(line, "%s %d",
                  address && address == facts_find(rows[i].symbol) ? rows[i].symbol : "other",
                  result);
    }
    address = &address;
    SAY("unknown", CU(cuGetProcAddress_v2)("cuNoSuchThing", &address, 12000, 0, &status));
    SAY("unknown_status", status);
    SAY_YES("unknown_is_null", !address);
    SAY("empty", CU(cuGetProcAddress_v2)("", &address, 12000, 0, &status));
    SAY("suffixed", CU(cuGetProcAddress_v2)("cuMemAlloc_v2", &address, 12000, 0, &status));
    SAY("suffixed_status", status);
    SAY("too_early", CU(cuGetProcAddress_v2)("cuMemAllocAsync", &address, 11000, 0, &status));
    SAY("too_early_status", status);
    SAY("status_null", CU(cuGetProcAddress_v2)("cuInit", &address, 12000, 0, NULL));
    SAY("newer_than_driver", CU(cuGetProcAddress_v2)("cuInit", &address, version + 10, 0, &status));
    SAY("bad_flags", CU(cuGetProcAddress_v2)("cuInit", &address, 12000, 8, &status));
    SAY("old_shape_unknown", CU(cuGetProcAddress)("cuNoSuchThing", &address, 12000, 0));
    /* Last: it may crash. A name of NULL does, in driver 580.159.04. */
    SAY("out_null", CU(cuGetProcAddress_v2)("cuInit", NULL, 12000, 0, &status));
}

static int attribute(CUdevice_attribute which)
{
    int value = -1;
    NEED(CU(cuDeviceGetAttribute)(&value, which, 0));
    return value;
}

void facts_device(void)
{
    int count = 0, value = 0;
    CUdevice device;
    char name[64];
    size_t bytes = 0;
    CUuuid uuid;
    NEED(CU(cuInit)(0));
    NEED(CU(cuDeviceGetCount)(&count));
    SAY("get_negative", CU(cuDeviceGet)(&device, -1));
    SAY("get_past_the_last", CU(cuDeviceGet)(&device, count));
    SAY("get_null", CU(cuDeviceGet)(NULL, 0));
    SAY("count_null", CU(cuDeviceGetCount)(NULL));
    /* A length of 0 is not asked for: driver 580.159.04 then writes past the end, and crashes. */
    SAY("name", CU(cuDeviceGetName)(name, sizeof(name), 0));
    SAY("name_bad_device", CU(cuDeviceGetName)(name, sizeof(name), 99));
    SAY("total", CU(cuDeviceTotalMem_v2)(&bytes, 0));
    SAY("total_null", CU(cuDeviceTotalMem_v2)(NULL, 0));
    SAY("uuid", CU(cuDeviceGetUuid_v2)(&uuid, 0));
    SAY("bad_attribute", CU(cuDeviceGetAttribute)(&value, (CUdevice_attribute)9999, 0));
    SAY("unified_addressing", attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING));
    SAY("managed_memory", attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    SAY("concurrent_managed_access", attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS));
    SAY("can_map_host_memory", attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY));
    SAY("virtual_memory", attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
    SAY("memory_pools", attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED));
    SAY("texture_alignment", attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT));
    SAY("warp_size", attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE));
}

void facts_no_context(void)
{
    CUdeviceptr a = 0;
    CUcontext ctx = (CUcontext)1;
    CUdevice device;
    CUstream stream;
    CUevent event;
    void *memory;
    size_t bytes;
    unsigned flags = 9;
    int active = 9;
    NEED(CU(cuInit)(0));
    SAY("current", CU(cuCtxGetCurrent)(&ctx));
    SAY_YES("current_is_null", !ctx);
    SAY("alloc", CU(cuMemAlloc_v2)(&a, 16));
    SAY("managed", CU(cuMemAllocManaged)(&a, 16, CU_MEM_ATTACH_GLOBAL));
    SAY("host_alloc", CU(cuMemHostAlloc)(&memory, 16, 0));
    SAY("alloc_async", CU(cuMemAllocAsync)(&a, 16, NULL));
    SAY("info", CU(cuMemGetInfo_v2)(&bytes, &bytes));
    SAY("free_of_0", CU(cuMemFree_v2)(0));
    SAY("synchronize", CU(cuCtxSynchronize)());
    SAY("device", CU(cuCtxGetDevice)(&device));
    SAY("stream_create", CU(cuStreamCreate)(&stream, 0));
    SAY("event_create", CU(cuEventCreate)(&event, 0));
    SAY("stream_query", CU(cuStreamQuery)(NULL));
    SAY("pop", CU(cuCtxPopCurrent_v2)(&ctx));
    SAY("set_null", CU(cuCtxSetCurrent)(NULL));
    SAY("primary_state", CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    SAY("primary_active", active);
    SAY("primary_release", CU(cuDevicePrimaryCtxRelease_v2)(0));
    SAY("primary_reset", CU(cuDevicePrimaryCtxReset_v2)(0));
}

static int primary_is_active(void)
{
    unsigned flags;
    int active = -1;
    NEED(CU(cuDevicePrimaryCtxGetState)(0, &flags, &active));
    return active;
}

void facts_context(void)
{
    CUcontext primary = facts_begin(), again = NULL, other = NULL, current = NULL, popped = NULL;
    unsigned long long id = 0, other_id = 0, next_id = 0;
    CUdeviceptr a;
    NEED(CU(cuCtxGetId)(primary, &id));
    NEED(CU(cuDevicePrimaryCtxRetain)(&again, 0));
    SAY_YES("retain_gives_the_same", again == primary);
    SAY("release", CU(cuDevicePrimaryCtxRelease_v2)(0));
    SAY("active_after_one_release", primary_is_active());
    NEED(CU(cuCtxCreate_v2)(&other, 0, 0));
    NEED(CU(cuCtxGetCurrent)(&current));
    SAY_YES("create_makes_current", current == other);
    SAY_YES("created_is_not_the_primary", other != primary);
    NEED(CU(cuCtxGetId)(other, &other_id));
    SAY_YES("ids_differ", id != other_id);
    SAY("pop", CU(cuCtxPopCurrent_v2)(&popped));
    SAY_YES("pop_gives_the_created", popped == other);
    NEED(CU(cuCtxGetCurrent)(&current));
    SAY_YES("primary_is_current_again", current == primary);
    SAY("push", CU(cuCtxPushCurrent_v2)(other));
    NEED(CU(cuMemAlloc_v2)(&a, 512));
    NEED(CU(cuCtxPopCurrent_v2)(&popped));
    SAY("destroy_not_current", CU(cuCtxDestroy_v2)(other));
    SAY("destroy_null", CU(cuCtxDestroy_v2)(NULL));
    NEED(CU(cuCtxGetCurrent)(&current));
    SAY_YES("destroy_left_current_alone", current == primary);
    NEED(CU(cuCtxCreate_v2)(&other, 0, 0));
    NEED(CU(cuCtxDestroy_v2)(other));
    NEED(CU(cuCtxGetCurrent)(&current));
    SAY_YES("destroy_of_current_pops_it", current == primary);
    SAY("reset", CU(cuDevicePrimaryCtxReset_v2)(0));
    SAY("active_after_reset", primary_is_active());
    SAY("current_after_reset", CU(cuCtxGetCurrent)(&current));
    SAY_YES("current_after_reset_is_the_primary", current == primary);
    SAY("alloc_after_reset", CU(cuMemAlloc_v2)(&a, 512));
    SAY("release_after_reset", CU(cuDevicePrimaryCtxRelease_v2)(0));
    NEED(CU(cuDevicePrimaryCtxRetain)(&again, 0));
    SAY_YES("retain_after_reset_gives_the_same", again == primary);
    NEED(CU(cuCtxSetCurrent)(again));
    NEED(CU(cuCtxGetId)(again, &next_id));
    SAY_YES("id_after_reset_is_new", next_id != id);
    SAY("alloc_after_retain", CU(cuMemAlloc_v2)(&a, 512));
    SAY("last_release", CU(cuDevicePrimaryCtxRelease_v2)(0));
    SAY("active_after_last_release", primary_is_active());
    SAY("one_release_too_many", CU(cuDevicePrimaryCtxRelease_v2)(0));
    NEED(CU(cuDevicePrimaryCtxRetain)(&again, 0));
    SAY_YES("retain_after_last_release_gives_the_same", again == primary);
    id = next_id;
    NEED(CU(cuCtxGetId)(again, &next_id));
    SAY_YES("id_after_last_release_is_new", next_id != id);
    NEED(CU(cuDevicePrimaryCtxReset_v2)(0));
    NEED(CU(cuDevicePrimaryCtxRetain)(&again, 0));
    NEED(CU(cuDevicePrimaryCtxRelease_v2)(0));
    SAY("active_after_retain_reset_retain_release", primary_is_active());
}

static CUgreenCtx green_new(void)
{
    CUdevResource all, part;
    CUdevResourceDesc desc;
    CUgreenCtx green = NULL;
    unsigned groups = 1;
    NEED(CU(cuDeviceGetDevResource)(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    NEED(CU(cuDevSmResourceSplitByCount)(&part, &groups, &all, NULL, 0, 16));
    NEED(CU(cuDevResourceGenerateDesc)(&desc, &part, 1));
    SAY("create_flags_0", CU(cuGreenCtxCreate)(&green, desc, 0, 0));
    NEED(CU(cuGreenCtxCreate)(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return green;
}

static CUresult free_memory(void *pointer)
{
    return CU(cuMemFree_v2)(*(CUdeviceptr *)pointer);
}

static CUresult allocate_memory(void *pointer)
{
    return CU(cuMemAlloc_v2)(pointer, 512);
}

struct freed {
    CUdeviceptr address;
    CUstream stream;
};

static CUresult free_in_order(void *data)
{
    struct freed *freed = data;
    CUresult result = CU(cuMemFreeAsync)(freed->address, freed->stream);
    return result ? result : CU(cuStreamSynchronize)(freed->stream);
}

/* Another context's stream comes after all that `first` was given. */
static void join_contexts(CUcontext first, CUcontext second)
{
    CUstream working, joining;
    CUevent event;
    NEED(CU(cuCtxSetCurrent)(second));
    NEED(CU(cuStreamCreate)(&joining, CU_STREAM_NON_BLOCKING));
    NEED(CU(cuCtxSetCurrent)(first));
    NEED(CU(cuStreamCreate)(&working, CU_STREAM_NON_BLOCKING));
    NEED(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    facts_hold(working);
    NEED(CU(cuCtxRecordEvent)(first, event));
    SAY("stream_waits_for_another_contexts_event", CU(cuStreamWaitEvent)(joining, event, 0));
    NEED(CU(cuEventDestroy_v2)(event));
    SAY("stream_that_waits", CU(cuStreamQuery)(joining));
    facts_release();
    SAY("stream_that_waited", CU(cuStreamSynchronize)(joining));
    SAY("what_it_waited_for", CU(cuStreamQuery)(working));
}

/* What a first allocation in a green context does while its primary works. */
static void facts_green_beside_work(CUcontext primary, CUcontext green)
{
    struct freed freed;
    CUcontext created;
    CUstream working;
    NEED(CU(cuCtxSetCurrent)(primary));
    NEED(CU(cuCtxSynchronize)());
    NEED(CU(cuStreamCreate)(&working, CU_STREAM_NON_BLOCKING));
    NEED(CU(cuStreamCreate)(&freed.stream, CU_STREAM_NON_BLOCKING));
    facts_hold(working);
    NEED(CU(cuCtxSetCurrent)(green));
    SAY_YES("allocation_waits_for_the_primary", facts_waits(allocate_memory, &freed.address, NULL));
    NEED(CU(cuCtxSetCurrent)(primary));
    NEED(CU(cuCtxSynchronize)());
    facts_hold(working);
    SAY_YES("free_in_order_waits_for_the_primary", facts_waits(free_in_order, &freed, NULL));
    NEED(CU(cuCtxSynchronize)());
    NEED(CU(cuCtxCreate_v2)(&created, 0, 0));
    join_contexts(primary, created);
    NEED(CU(cuCtxDestroy_v2)(created));
    NEED(CU(cuCtxSetCurrent)(primary));
}

void facts_green(void)
{
    CUcontext primary = facts_begin(), ctx = NULL, owner = NULL, of_stream = NULL;
    CUgreenCtx green = green_new();
    CUstream stream = NULL;
    CUevent event;
    CUdeviceptr a;
    unsigned long long id = 0, green_id = 0;
    NEED(CU(cuCtxFromGreenCtx)(&ctx, green));
    SAY_YES("handle_differs", ctx != primary);
    NEED(CU(cuCtxGetId)(primary, &id));
    NEED(CU(cuCtxGetId)(ctx, &green_id));
    SAY_YES("id_differs", id != green_id);
    SAY("stream_flags_0", CU(cuGreenCtxStreamCreate)(&stream, green, 0, 0));
    SAY("stream", CU(cuGreenCtxStreamCreate)(&stream, green, CU_STREAM_NON_BLOCKING, 0));
    SAY("stream_ctx", CU(cuStreamGetCtx)(stream, &of_stream));
    NEED(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    NEED(CU(cuCtxSetCurrent)(ctx));
    NEED(CU(cuMemAlloc_v2)(&a, 4096));
    NEED(CU(cuPointerGetAttribute)(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, a));
    SAY_YES("memory_belongs_to_the_primary", owner == primary);
    facts_hold(NULL);
    NEED(CU(cuCtxSetCurrent)(primary));
    SAY("primary_null_query_while_green_null_works", CU(cuStreamQuery)(NULL));
    NEED(CU(cuCtxRecordEvent)(primary, event));
    SAY("context_event_while_green_null_works", CU(cuEventQuery)(event));
    SAY_YES("free_waits_for_green_null", facts_waits(free_memory, &a, NULL));
    NEED(CU(cuEventSynchronize)(event));
    NEED(CU(cuMemAlloc_v2)(&a, 4096));
    NEED(CU(cuCtxSetCurrent)(ctx));
    facts_hold(stream);
    NEED(CU(cuCtxSetCurrent)(primary));
    NEED(CU(cuCtxRecordEvent)(primary, event));
    SAY("context_event_while_green_stream_works", CU(cuEventQuery)(event));
    SAY_YES("free_waits_for_green_stream", facts_waits(free_memory, &a, NULL));
    facts_green_beside_work(primary, ctx);
}

void facts_peer(void)
{
    CUcontext first, second;
    CUdeviceptr near, far;
    int count = 0, can = -1;
    NEED(CU(cuInit)(0));
    NEED(CU(cuDeviceGetCount)(&count));
    if (count < 2)
        return; /* no lines: the comparison leaves out what one side does not have */
    NEED(CU(cuDevicePrimaryCtxRetain)(&second, 1));
    NEED(CU(cuCtxSetCurrent)(second));
    NEED(CU(cuMemAlloc_v2)(&far, 4096));
    first = facts_begin();
    NEED(CU(cuMemAlloc_v2)(&near, 4096));
    NEED(CU(cuDeviceCanAccessPeer)(&can, 0, 1));
    SAY("can_access", can);
    NEED(CU(cuDeviceCanAccessPeer)(&can, 0, 0));
    SAY("can_access_itself", can);
    SAY("enable_itself", CU(cuCtxEnablePeerAccess)(first, 0));
    SAY("enable_flags_1", CU(cuCtxEnablePeerAccess)(second, 1));
    SAY("enable", CU(cuCtxEnablePeerAccess)(second, 0));
    SAY("enable_again", CU(cuCtxEnablePeerAccess)(second, 0));
    SAY("fill_there", facts_fill(NULL, far, 1, 7));
    SAY("fill_there_done", CU(cuCtxSynchronize)());
    SAY("copy", CU(cuMemcpyDtoD_v2)(near, far, 4));
    SAY("copy_done", CU(cuCtxSynchronize)());
    facts_hold(NULL);
    SAY_YES("free_waits_for_the_peer", facts_waits(free_memory, &far, NULL));
    NEED(CU(cuCtxSynchronize)());
    SAY("disable", CU(cuCtxDisablePeerAccess)(second));
    SAY("disable_again", CU(cuCtxDisablePeerAccess)(second));
    join_contexts(second, first);
    NEED(CU(cuCtxSetCurrent)(first));
}

void facts_fault(void)
{
    facts_begin();
    CUdeviceptr a, b;
    CUevent event;
    CUstream stream;
    size_t bytes;
    NEED(CU(cuMemAlloc_v2)(&a, 512));
    NEED(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    NEED(facts_launch("fault", NULL, NULL));
    SAY("synchronize", CU(cuCtxSynchronize)());
    SAY("synchronize_again", CU(cuCtxSynchronize)());
    SAY("alloc", CU(cuMemAlloc_v2)(&b, 512));
    SAY("free", CU(cuMemFree_v2)(a));
    SAY("info", CU(cuMemGetInfo_v2)(&bytes, &bytes));
    SAY("stream_query", CU(cuStreamQuery)(NULL));
    SAY("stream_create", CU(cuStreamCreate)(&stream, 0));
    SAY("event_record", CU(cuEventRecord)(event, NULL));
    SAY("event_query", CU(cuEventQuery)(event));
    SAY("range", CU(cuMemGetAddressRange_v2)(NULL, &bytes, a));
    SAY("pointer_attribute", CU(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_BUFFER_ID, a));
}
