/* SPDX-License-Identifier: Apache-2.0 */
/* Residency of managed memory, and the entry points about it. */
#include "driver/managed.h"

#include "driver/call.h"
#include "driver/device.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/stream.h"
#include "hostcuda.h"

#include <stdlib.h>
#include <string.h>

#define ON_HOST (-1)

/* A block on a device, in the order of arrival. */
struct resident {
    size_t block;
    struct resident *next;
};

static struct resident *oldest[HC_DEVICES_MAX], **newest[HC_DEVICES_MAX];
static signed char *place; /* device + 1 of each block of the managed region */
static unsigned long long to_device_count, to_host_count;

static struct hc_region *memory_of(int device)
{
    return &hc_device_at(device)->memory;
}

static int place_of(size_t block)
{
    return place ? place[block] - 1 : ON_HOST;
}

static void leave(size_t block)
{
    int device = place_of(block);
    struct resident **link = &oldest[device];
    while ((*link)->block != block)
        link = &(*link)->next;
    struct resident *resident = *link;
    *link = resident->next;
    if (newest[device] == &resident->next)
        newest[device] = link;
    free(resident);
    memory_of(device)->used_bytes -= HC_BLOCK_BYTES;
    place[block] = 0;
}

bool hc_managed_evict(int device)
{
    if (!oldest[device])
        return false;
    leave(oldest[device]->block);
    to_host_count++;
    return true;
}

static bool has_room(int device)
{
    const struct hc_region *memory = memory_of(device);
    return memory->used_bytes + HC_BLOCK_BYTES <= memory->capacity_bytes;
}

static void arrive(size_t block, int device)
{
    while (!has_room(device)) {
        if (!hc_managed_evict(device))
            return; /* all else is pinned down: the block is used from the host */
    }
    struct resident *resident = malloc(sizeof(*resident));
    if (!resident)
        abort();
    *resident = (struct resident){.block = block};
    if (!oldest[device])
        newest[device] = &oldest[device];
    *newest[device] = resident;
    newest[device] = &resident->next;
    memory_of(device)->used_bytes += HC_BLOCK_BYTES;
    place[block] = (signed char)(device + 1);
    to_device_count++;
}

void hc_managed_move(uintptr_t address, size_t bytes, int device)
{
    const struct hc_region *region = hc_managed_region();
    if (!place && !(place = calloc(region->block_count, 1)))
        abort();
    size_t first = (address - region->base) / HC_BLOCK_BYTES;
    size_t last = (address - region->base + bytes - 1) / HC_BLOCK_BYTES;
    for (size_t block = first; block <= last; block++) {
        if (place_of(block) == device)
            continue;
        if (place_of(block) != ON_HOST) {
            leave(block);
            to_host_count++;
        }
        if (device != ON_HOST)
            arrive(block, device);
    }
}

void hc_managed_forget(uintptr_t address, size_t bytes)
{
    unsigned long long before = to_host_count;
    hc_managed_move(address, bytes, ON_HOST);
    to_host_count = before; /* nothing was moved: it is gone */
    hc_advice_forget(address, bytes);
}

void hc_managed_use(int device, const struct hc_work *work)
{
    for (unsigned i = 0; i < work->range_count; i++) {
        const struct hc_range *range = &work->ranges[i];
        if (hc_region_holds(hc_managed_region(), range->address))
            hc_managed_move(range->address, range->bytes, device);
    }
}

HC_API void hostcuda_migrations(unsigned long long *to_device, unsigned long long *to_host)
{
    HC_LOCKED();
    *to_device = to_device_count;
    *to_host = to_host_count;
}

struct prefetch {
    uintptr_t address;
    size_t bytes;
    int device;
};

static void finish_prefetch(void *args)
{
    const struct prefetch *prefetch = args;
    if (hc_memory_find(prefetch->address))
        hc_managed_move(prefetch->address, prefetch->bytes, prefetch->device);
}

bool hc_managed_holds(CUdeviceptr dptr, size_t bytes)
{
    const struct hc_alloc *alloc = hc_memory_find(dptr);
    return bytes && alloc && alloc->kind == HC_MANAGED && bytes <= alloc->base + alloc->size - dptr;
}

static CUresult prefetch_to(CUdeviceptr dptr, size_t bytes, int device, CUstream handle)
{
    HC_LOCKED();
    struct hc_stream *stream;
    CUresult result = hc_stream_of(handle, &stream);
    if (result)
        return result;
    if (device != ON_HOST && !hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!hc_managed_holds(dptr, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    hc_advice_prefetched(dptr, bytes, device);
    struct prefetch prefetch = {dptr, bytes, device};
    struct hc_work work = {.finish = finish_prefetch, .type = CU_GRAPH_NODE_TYPE_EMPTY};
    memcpy(work.args, &prefetch, sizeof(prefetch));
    return hc_stream_submit(stream, &work, NULL);
}

HC_PAIR(cuMemPrefetchAsync, _ptsz,
        (CUdeviceptr dptr, size_t bytes, CUdevice device, CUstream stream),
        prefetch_to(dptr, bytes, device, HC_STREAM(stream)));

static bool is_location(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ||
           location.type == CU_MEM_LOCATION_TYPE_HOST;
}

static CUresult prefetch_to_location(CUdeviceptr dptr, size_t bytes, CUmemLocation location,
                                     unsigned flags, CUstream stream)
{
    if (flags || !is_location(location))
        return CUDA_ERROR_INVALID_VALUE;
    int device = location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : ON_HOST;
    return prefetch_to(dptr, bytes, device, stream);
}

HC_PAIR(cuMemPrefetchAsync_v2, _ptsz,
        (CUdeviceptr dptr, size_t bytes, CUmemLocation location, unsigned int flags,
         CUstream stream),
        prefetch_to_location(dptr, bytes, location, flags, HC_STREAM(stream)));
