/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about memory of every kind. */
#include "facts.h"

#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static CUdeviceptr take(size_t bytes)
{
    CUdeviceptr pointer;
    NEED(CU(cuMemAlloc_v2)(&pointer, bytes));
    return pointer;
}

void facts_alloc(void)
{
    facts_begin();
    CUdeviceptr a = 0, b = 0, base = 0;
    size_t bytes = 0, pitch = 0, free_bytes = 0, total_bytes = 0;
    SAY("zero_bytes", CU(cuMemAlloc_v2)(&a, 0));
    SAY("null_out", CU(cuMemAlloc_v2)(NULL, 16));
    SAY("2_to_60_bytes", CU(cuMemAlloc_v2)(&a, (size_t)1 << 60));
    SAY("size_max_bytes", CU(cuMemAlloc_v2)(&a, SIZE_MAX));
    a = take(1000);
    b = take(1000);
    facts_say("distance_of_two_of_1000_bytes", "%lld", llabs((long long)(b - a)));
    SAY_YES("aligned_to_512", a % 512 == 0 && b % 512 == 0);
    SAY("range_inside", CU(cuMemGetAddressRange_v2)(&base, &bytes, b + 999));
    SAY_YES("range_base_is_exact", base == b);
    SAY("range_size", bytes);
    SAY("range_one_past_the_end", CU(cuMemGetAddressRange_v2)(&base, &bytes, b + 1000));
    SAY("range_both_null", CU(cuMemGetAddressRange_v2)(NULL, NULL, b));
    SAY("range_base_only", CU(cuMemGetAddressRange_v2)(&base, NULL, b));
    SAY("range_size_only", CU(cuMemGetAddressRange_v2)(NULL, &bytes, b));
    SAY("range_of_address_0", CU(cuMemGetAddressRange_v2)(&base, &bytes, 0));
    SAY("range_of_host_memory",
        CU(cuMemGetAddressRange_v2)(&base, &bytes, (CUdeviceptr)(uintptr_t)&bytes));
    NEED(CU(cuMemFree_v2)(b));
    SAY("range_of_freed", CU(cuMemGetAddressRange_v2)(&base, &bytes, b));
    NEED(CU(cuMemFree_v2)(a));
    bool is_aligned = true;
    for (int i = 0; i < 4; i++) {
        a = take(MIB + 1 + (size_t)i * MIB);
        is_aligned &= a % (2 * MIB) == 0;
        NEED(CU(cuMemFree_v2)(a));
    }
    SAY_YES("above_1_mib_aligned_to_2_mib", is_aligned);
    SAY("pitch", CU(cuMemAllocPitch_v2)(&a, &pitch, 513, 3, 4));
    SAY("pitch_of_513_bytes", pitch);
    NEED(CU(cuMemGetAddressRange_v2)(NULL, &bytes, a));
    SAY_YES("pitch_range_is_pitch_times_height", bytes == pitch * 3);
    NEED(CU(cuMemFree_v2)(a));
    SAY("pitch_element_5", CU(cuMemAllocPitch_v2)(&a, &pitch, 64, 3, 5));
    SAY("pitch_width_0", CU(cuMemAllocPitch_v2)(&a, &pitch, 0, 3, 4));
    SAY("pitch_height_0", CU(cuMemAllocPitch_v2)(&a, &pitch, 64, 0, 4));
    SAY("info", CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
    SAY_YES("info_free_below_total", free_bytes < total_bytes);
    SAY("info_null_free", CU(cuMemGetInfo_v2)(NULL, &total_bytes));
    SAY("info_null_total", CU(cuMemGetInfo_v2)(&free_bytes, NULL));
    size_t device_bytes = 0;
    NEED(CU(cuDeviceTotalMem_v2)(&device_bytes, 0));
    SAY_YES("info_total_is_the_devices", device_bytes == total_bytes);
    SAY("fill_d32_unaligned", CU(cuMemsetD32_v2)((a = take(64)) + 2, 1, 1));
    SAY("fill_0_elements", CU(cuMemsetD8_v2)(a, 1, 0));
    SAY("copy_0_bytes", CU(cuMemcpyDtoD_v2)(a, a, 0));
    NEED(CU(cuMemFree_v2)(a));
    a = take(512);
    b = take(512);
    NEED(CU(cuMemFree_v2)(a));
    base = take(512);
    SAY_YES("freed_address_comes_again", base == a);
    NEED(CU(cuMemFree_v2)(base));
    NEED(CU(cuMemFree_v2)(b));
}

static size_t free_bytes(void)
{
    size_t bytes = 0, total_bytes;
    NEED(CU(cuMemGetInfo_v2)(&bytes, &total_bytes));
    return bytes;
}

/* Of cuMemAlloc's memory.  Returns what is free when the stream has come to the free. */
static size_t free_in_order(CUstream stream)
{
    NEED(CU(cuMemFreeAsync)(take((size_t)64 << 20), stream));
    while (CU(cuStreamQuery)(stream) == CUDA_ERROR_NOT_READY)
        ;
    return free_bytes();
}

/* When it is the device's again, for this process and others. */
static void facts_late_free(void)
{
    CUstream stream = NULL, other = NULL;
    CUevent event = NULL;
    size_t at_first, before;
    NEED(CU(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
    NEED(CU(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
    NEED(CU(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    at_first = free_bytes();
    before = free_in_order(stream);
    SAY_YES("async_free_of_plain_is_late", before < at_first);
    NEED(CU(cuStreamSynchronize)(stream));
    SAY_YES("until_its_stream_is_waited_for", free_bytes() > before);
    before = free_in_order(stream);
    NEED(CU(cuEventRecord)(event, stream));
    NEED(CU(cuEventSynchronize)(event));
    SAY_YES("until_an_event_is_waited_for", free_bytes() > before);
    before = free_in_order(stream);
    NEED(CU(cuStreamSynchronize)(other));
    SAY_YES("until_another_stream_is_waited_for", free_bytes() > before);
    NEED(CU(cuCtxSynchronize)());
}

void facts_free(void)
{
    CUcontext primary = facts_begin(), other;
    int local = 0;
    CUdeviceptr a = take(4096), b;
    SAY("zero", CU(cuMemFree_v2)(0));
    SAY("interior", CU(cuMemFree_v2)(a + 512));
    SAY("host_memory", CU(cuMemFree_v2)((CUdeviceptr)(uintptr_t)&local));
    SAY("unknown", CU(cuMemFree_v2)((CUdeviceptr)0x1000));
    SAY("first", CU(cuMemFree_v2)(a));
    SAY("second", CU(cuMemFree_v2)(a));
    a = take(4096);
    NEED(CU(cuCtxSetCurrent)(NULL));
    SAY("without_context", CU(cuMemFree_v2)(a));
    NEED(CU(cuCtxSetCurrent)(primary));
    a = take(4096);
    NEED(CU(cuCtxCreate_v2)(&other, 0, 0));
    SAY("in_another_context", CU(cuMemFree_v2)(a));
    b = take(4096);
    NEED(CU(cuCtxDestroy_v2)(other));
    NEED(CU(cuCtxSetCurrent)(primary));
    SAY("of_a_destroyed_context", CU(cuMemFree_v2)(b));
    a = take(4096);
    NEED(CU(cuDevicePrimaryCtxReset_v2)(0));
    NEED(CU(cuDevicePrimaryCtxRetain)(&primary, 0));
    NEED(CU(cuCtxSetCurrent)(primary));
    SAY("from_before_a_reset", CU(cuMemFree_v2)(a));
    a = take(4096);
    SAY("async_free_of_plain", CU(cuMemFreeAsync)(a, NULL));
    NEED(CU(cuCtxSynchronize)());
    SAY("second_after_async_free", CU(cuMemFree_v2)(a));
    SAY("async_free_of_unknown", CU(cuMemFreeAsync)((CUdeviceptr)0x1000, NULL));
    facts_late_free();
}

/* Whether small managed blocks share pages, and with them advice; and what a new one begins with.
 */
static void facts_neighbours(void)
{
    CUdeviceptr a, b;
    int advised = 9;
    NEED(CU(cuMemAllocManaged)(&a, 600, CU_MEM_ATTACH_GLOBAL));
    NEED(CU(cuMemAllocManaged)(&b, 600, CU_MEM_ATTACH_GLOBAL));
    SAY_YES("small_ones_share_a_page", a / 4096 == b / 4096);
    NEED(CU(cuMemAdvise)(a, 600, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    NEED(CU(cuMemRangeGetAttribute)(&advised, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, b, 600));
    SAY("advice_seen_by_the_neighbour", advised);
    NEED(CU(cuMemFree_v2)(a));
    NEED(CU(cuMemFree_v2)(b));
    NEED(CU(cuMemAllocManaged)(&a, (size_t)4 << 20, CU_MEM_ATTACH_GLOBAL));
    SAY_YES("large_aligned_to_64_kib", a % 65536 == 0);
    NEED(CU(cuMemFree_v2)(a));
}

void facts_managed(void)
{
    facts_begin();
    CUdeviceptr a = 0;
    CUipcMemHandle handle;
    size_t bytes = 0;
    unsigned value = 9;
    void *host = NULL;
    SAY("zero_bytes", CU(cuMemAllocManaged)(&a, 0, CU_MEM_ATTACH_GLOBAL));
    SAY("null_out", CU(cuMemAllocManaged)(NULL, 16, CU_MEM_ATTACH_GLOBAL));
    SAY("flags_0", CU(cuMemAllocManaged)(&a, 16, 0));
    SAY("flags_single", CU(cuMemAllocManaged)(&a, 16, CU_MEM_ATTACH_SINGLE));
    NEED(CU(cuMemAllocManaged)(&a, 5000, CU_MEM_ATTACH_GLOBAL));
    SAY_YES("aligned_to_512", a % 512 == 0);
    NEED(CU(cuMemGetAddressRange_v2)(NULL, &bytes, a + 4999));
    SAY("range_size", bytes);
    SAY("is_managed", CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, a));
    SAY("is_managed_value", value);
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
    SAY("memory_type", value);
    SAY("host_pointer", CU(cuPointerGetAttribute)(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, a + 8));
    SAY_YES("host_pointer_is_the_same", (CUdeviceptr)(uintptr_t)host == a + 8);
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
    SAY("ipc_capable", value);
    SAY("ipc_handle", CU(cuIpcGetMemHandle)(&handle, a));
    SAY("async_free", CU(cuMemFreeAsync)(a, NULL));
    SAY("attach_length_0", CU(cuStreamAttachMemAsync)(NULL, a, 0, CU_MEM_ATTACH_GLOBAL));
    SAY("attach_whole", CU(cuStreamAttachMemAsync)(NULL, a, 5000, CU_MEM_ATTACH_GLOBAL));
    SAY("attach_part", CU(cuStreamAttachMemAsync)(NULL, a, 512, CU_MEM_ATTACH_GLOBAL));
    SAY("attach_interior", CU(cuStreamAttachMemAsync)(NULL, a + 512, 0, CU_MEM_ATTACH_GLOBAL));
    SAY("attach_single_null", CU(cuStreamAttachMemAsync)(NULL, a, 0, CU_MEM_ATTACH_SINGLE));
    SAY("attach_global_again", CU(cuStreamAttachMemAsync)(NULL, a, 0, CU_MEM_ATTACH_GLOBAL));
    NEED(CU(cuCtxSynchronize)());
    SAY("advise_to_the_page", CU(cuMemAdvise)(a, 8192, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    SAY("advise_past_it", CU(cuMemAdvise)(a, (size_t)64 << 20, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    SAY("unadvise_never_advised",
        CU(cuMemAdvise)(a, 5000, CU_MEM_ADVISE_UNSET_ACCESSED_BY, CU_DEVICE_CPU));
    SAY("free_interior", CU(cuMemFree_v2)(a + 512));
    SAY("free", CU(cuMemFree_v2)(a));
    SAY("free_again", CU(cuMemFree_v2)(a));
    facts_neighbours();
    CUdeviceptr device = take(4096);
    SAY("attach_device_memory", CU(cuStreamAttachMemAsync)(NULL, device, 0, CU_MEM_ATTACH_GLOBAL));
    NEED(CU(cuMemFree_v2)(device));
}

void facts_pinned(void)
{
    facts_begin();
    void *a = NULL;
    CUdeviceptr device = 0;
    unsigned flags = 99, type = 99;
    size_t bytes = 0;
    static char pageable[3 * 4096];
    char *page = (char *)(((uintptr_t)pageable + 4095) / 4096 * 4096);
    a = &flags;
    SAY("zero_bytes", CU(cuMemHostAlloc)(&a, 0, 0));
    SAY_YES("zero_bytes_gives_null", !a);
    SAY("alloc_host_zero_bytes", CU(cuMemAllocHost_v2)(&a, 0));
    SAY("null_out", CU(cuMemHostAlloc)(NULL, 16, 0));
    SAY("bad_flags", CU(cuMemHostAlloc)(&a, 16, 0x100));
    NEED(CU(cuMemHostAlloc)(&a, 8192, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED));
    SAY("flags_of_interior", CU(cuMemHostGetFlags)(&flags, (char *)a + 100));
    SAY("flags_value", flags);
    SAY("device_pointer", CU(cuMemHostGetDevicePointer_v2)(&device, (char *)a + 4, 0));
    SAY_YES("device_pointer_is_the_same", device == (CUdeviceptr)(uintptr_t)a + 4);
    NEED(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   (CUdeviceptr)(uintptr_t)a));
    SAY("memory_type", type);
    SAY("range", CU(cuMemGetAddressRange_v2)(NULL, &bytes, (CUdeviceptr)(uintptr_t)a + 1));
    SAY("range_size", bytes);
    SAY("free_interior", CU(cuMemFreeHost)((char *)a + 100));
    SAY("free_as_device_memory", CU(cuMemFree_v2)((CUdeviceptr)(uintptr_t)a));
    SAY("free", CU(cuMemFreeHost)(a));
    SAY("free_again", CU(cuMemFreeHost)(a));
    SAY("free_pageable", CU(cuMemFreeHost)(page));
    SAY("flags_of_pageable", CU(cuMemHostGetFlags)(&flags, page));
    NEED(CU(cuMemAllocHost_v2)(&a, 4096));
    NEED(CU(cuMemHostGetFlags)(&flags, a));
    SAY("flags_of_alloc_host", flags);
    NEED(CU(cuMemFreeHost)(a));
    SAY("register", CU(cuMemHostRegister_v2)(page, 4096, 0));
    SAY("register_again", CU(cuMemHostRegister_v2)(page, 4096, 0));
    SAY("free_registered", CU(cuMemFreeHost)(page));
    SAY("unregister", CU(cuMemHostUnregister)(page));
    SAY("unregister_again", CU(cuMemHostUnregister)(page));
}

void facts_pointer(void)
{
    CUcontext primary = facts_begin(), ctx = NULL;
    CUdeviceptr a = take(1000), start = 0, device = 0;
    unsigned value = 99;
    int ordinal = 99;
    size_t bytes = 0;
    unsigned long long id = 0, next_id = 0, handle_types = 99;
    void *host = NULL;
    CUmemoryPool pool = (CUmemoryPool)1;
    SAY("context", CU(cuPointerGetAttribute)(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, a + 4));
    SAY_YES("context_is_the_current", ctx == primary);
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
    SAY("memory_type", value);
    NEED(CU(cuPointerGetAttribute)(&device, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, a + 4));
    SAY_YES("device_pointer_is_the_same", device == a + 4);
    SAY("host_pointer", CU(cuPointerGetAttribute)(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, a));
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_IS_MANAGED, a));
    SAY("is_managed", value);
    NEED(CU(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a));
    SAY("ordinal", ordinal);
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
    SAY("ipc_capable", value);
    NEED(CU(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, a + 999));
    SAY_YES("range_start_is_exact", start == a);
    NEED(CU(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, a));
    SAY("range_size", bytes);
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MAPPED, a));
    SAY("mapped", value);
    SAY("handle_types",
        CU(cuPointerGetAttribute)(&handle_types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, a));
    facts_say("handle_types_value", "%llu", handle_types);
    SAY("pool", CU(cuPointerGetAttribute)(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
    SAY_YES("pool_is_null", !pool);
    NEED(CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, a));
    NEED(CU(cuMemFree_v2)(a));
    a = take(1000);
    NEED(CU(cuPointerGetAttribute)(&next_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, a));
    SAY_YES("buffer_id_is_new", id != next_id);
    SAY("null_out", CU(cuPointerGetAttribute)(NULL, CU_POINTER_ATTRIBUTE_BUFFER_ID, a));
    SAY("unknown_attribute", CU(cuPointerGetAttribute)(&value, (CUpointer_attribute)9999, a));
    SAY("one_past_the_end",
        CU(cuPointerGetAttribute)(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, a + 1000));
    NEED(CU(cuMemFree_v2)(a));
    SAY("freed", CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
    int local = 0;
    SAY("host_memory", CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                 (CUdeviceptr)(uintptr_t)&local));
    CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                    CU_POINTER_ATTRIBUTE_CONTEXT};
    void *data[] = {&value, &ordinal, &ctx};
    SAY("several_of_freed", CU(cuPointerGetAttributes)(3, wanted, data, a));
    SAY("several_memory_type", value);
    SAY("several_ordinal", ordinal);
    SAY_YES("several_context_is_null", !ctx);
}

void facts_vmm(void)
{
    facts_begin();
    CUmemAllocationProp prop;
    CUmemAccessDesc access;
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr range = 0, base = 0;
    CUipcMemHandle ipc;
    size_t step = 0, bytes = 0;
    unsigned value = 99;
    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    memset(&access, 0, sizeof(access));
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    NEED(CU(cuMemGetAllocationGranularity)(&step, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    SAY("granularity", step);
    SAY("reserve_odd_size", CU(cuMemAddressReserve)(&range, step + 1, 0, 0, 0));
    SAY("create_odd_size", CU(cuMemCreate)(&handle, step + 1, &prop, 0));
    SAY("create_0_bytes", CU(cuMemCreate)(&handle, 0, &prop, 0));
    SAY("reserve", CU(cuMemAddressReserve)(&range, 4 * step, 0, 0, 0));
    SAY("create", CU(cuMemCreate)(&handle, step, &prop, 0));
    SAY("map_more_than_there_is", CU(cuMemMap)(range, 2 * step, 0, handle, 0));
    SAY("map", CU(cuMemMap)(range, step, 0, handle, 0));
    SAY("map_over_it", CU(cuMemMap)(range, step, 0, handle, 0));
    SAY("map_elsewhere_too", CU(cuMemMap)(range + step, step, 0, handle, 0));
    SAY("set_access", CU(cuMemSetAccess)(range, 2 * step, &access, 1));
    SAY("set_access_unmapped", CU(cuMemSetAccess)(range, 4 * step, &access, 1));
    NEED(CU(cuMemsetD32_v2)(range + 64, 5, 1));
    NEED(CU(cuMemcpyDtoH_v2)(&value, range + step + 64, 4));
    SAY("second_mapping_shows", value);
    SAY("free", CU(cuMemFree_v2)(range));
    SAY("ipc_handle", CU(cuIpcGetMemHandle)(&ipc, range));
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, range));
    SAY("ipc_capable", value);
    SAY("range", CU(cuMemGetAddressRange_v2)(&base, &bytes, range + 64));
    SAY_YES("range_is_the_mapping", base == range && bytes == step);
    SAY("retain", CU(cuMemRetainAllocationHandle)(&again, (void *)(uintptr_t)range));
    SAY_YES("retained_is_the_same", again == handle);
    NEED(CU(cuMemRelease)(again));
    SAY("release_while_mapped", CU(cuMemRelease)(handle));
    SAY("address_free_while_mapped", CU(cuMemAddressFree)(range, 4 * step));
    SAY("unmap_half", CU(cuMemUnmap)(range, step / 2));
    NEED(CU(cuCtxSynchronize)());
    SAY("unmap", CU(cuMemUnmap)(range, step));
    SAY("unmap_again", CU(cuMemUnmap)(range, step));
    NEED(CU(cuMemUnmap)(range + step, step));
    SAY("address_free_part", CU(cuMemAddressFree)(range, step));
    SAY("address_free", CU(cuMemAddressFree)(range, 4 * step));
}

void facts_ipc(void)
{
    facts_begin();
    CUdeviceptr a = take(4096), opened = 0;
    CUipcMemHandle whole, inside, bad;
    SAY("handle", CU(cuIpcGetMemHandle)(&whole, a));
    SAY("handle_of_interior", CU(cuIpcGetMemHandle)(&inside, a + 100));
    SAY_YES("handles_are_equal", !memcmp(&whole, &inside, sizeof(whole)));
    SAY("null_out", CU(cuIpcGetMemHandle)(NULL, a));
    SAY("open_in_own_process",
        CU(cuIpcOpenMemHandle_v2)(&opened, whole, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    bad = whole;
    bad.reserved[60] = (char)(bad.reserved[60] ^ 0x55);
    SAY("open_altered_tail",
        CU(cuIpcOpenMemHandle_v2)(&opened, bad, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    SAY("close_own", CU(cuIpcCloseMemHandle)(a));
    NEED(CU(cuMemFree_v2)(a));
    SAY("handle_of_freed", CU(cuIpcGetMemHandle)(&whole, a));
    SAY("handle_of_0", CU(cuIpcGetMemHandle)(&whole, 0));
}

/* What a pool keeps of a refused request for bytes. */
static size_t kept_by_refused(CUmemoryPool pool, size_t bytes, cuuint64_t threshold_bytes)
{
    cuuint64_t reserved = 99;
    CUdeviceptr a;
    NEED(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold_bytes));
    if (CU(cuMemAllocFromPoolAsync)(&a, bytes, pool, NULL) != CUDA_ERROR_OUT_OF_MEMORY)
        return 99;
    NEED(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    NEED(CU(cuMemPoolTrimTo)(pool, 0));
    return reserved;
}

static void refused(CUmemoryPool pool)
{
    const CUmemPoolProps small = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                  .maxSize = 256 << 20};
    size_t free_bytes, total_bytes, kept;
    CUmemoryPool limited;
    NEED(CU(cuMemGetInfo_v2)(&free_bytes, &total_bytes));
    kept = kept_by_refused(pool, free_bytes + (1 << 30), UINT64_MAX);
    SAY_YES("refused_keeps_all_that_was_free", kept <= free_bytes && free_bytes - kept < 64 << 20);
    SAY("refused_keeps_at_threshold_0", kept_by_refused(pool, free_bytes + (1 << 30), 0));
    NEED(CU(cuMemPoolCreate)(&limited, &small));
    SAY("refused_of_256_mib_keeps_mib", kept_by_refused(limited, 512 << 20, UINT64_MAX) >> 20);
    NEED(CU(cuMemPoolDestroy)(limited));
}

void facts_pool(void)
{
    CUcontext primary = facts_begin();
    CUdeviceptr a = 0;
    CUmemoryPool pool = NULL, current = NULL;
    CUipcMemHandle handle;
    CUcontext ctx = primary;
    cuuint64_t number = 99;
    size_t bytes = 0;
    int flag = 99;
    unsigned value = 99;
    NEED(CU(cuDeviceGetDefaultMemPool)(&pool, 0));
    NEED(CU(cuDeviceGetMemPool)(&current, 0));
    SAY_YES("current_is_the_default", pool == current);
    NEED(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &number));
    facts_say("threshold", "%llu", (unsigned long long)number);
    NEED(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &flag));
    SAY("reuse_opportunistic", flag);
    NEED(CU(cuMemPoolGetAttribute)(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &flag));
    SAY("reuse_follow_events", flag);
    a = 1;
    SAY("zero_bytes", CU(cuMemAllocAsync)(&a, 0, NULL));
    SAY_YES("zero_bytes_gives_0", !a);
    SAY("null_out", CU(cuMemAllocAsync)(NULL, 16, NULL));
    SAY("2_to_60_bytes", CU(cuMemAllocAsync)(&a, (size_t)1 << 60, NULL));
    SAY("allocate", CU(cuMemAllocAsync)(&a, 5000, NULL));
    SAY_YES("aligned_to_512", a % 512 == 0);
    SAY("range", CU(cuMemGetAddressRange_v2)(NULL, &bytes, a + 4999));
    SAY("range_size", bytes);
    SAY("pool_of_pointer",
        CU(cuPointerGetAttribute)(&current, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, a));
    SAY_YES("pool_of_pointer_is_the_default", current == pool);
    SAY("context_of_pointer", CU(cuPointerGetAttribute)(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, a));
    SAY_YES("context_of_pointer_is_null", !ctx);
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, a));
    SAY("memory_type", value);
    SAY("ipc_handle", CU(cuIpcGetMemHandle)(&handle, a));
    NEED(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, a));
    SAY("ipc_capable", value);
    SAY("free_interior", CU(cuMemFreeAsync)(a + 512, NULL));
    SAY("free", CU(cuMemFreeAsync)(a, NULL));
    SAY("free_again", CU(cuMemFreeAsync)(a, NULL));
    SAY("plain_free_after", CU(cuMemFree_v2)(a));
    SAY("free_of_0", CU(cuMemFreeAsync)(0, NULL));
    NEED(CU(cuMemAllocAsync)(&a, 5000, NULL));
    NEED(CU(cuStreamSynchronize)(NULL));
    SAY("plain_free", CU(cuMemFree_v2)(a));
    NEED(CU(cuMemAllocAsync)(&a, 5000, NULL));
    NEED(CU(cuCtxSynchronize)());
    NEED(CU(cuDevicePrimaryCtxReset_v2)(0));
    NEED(CU(cuDevicePrimaryCtxRetain)(&primary, 0));
    NEED(CU(cuCtxSetCurrent)(primary));
    SAY("free_after_a_reset", CU(cuMemFree_v2)(a));
    SAY("trim", CU(cuMemPoolTrimTo)(pool, 0));
    refused(pool);
    SAY("destroy_default", CU(cuMemPoolDestroy)(pool));
}
