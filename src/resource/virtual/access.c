/* SPDX-License-Identifier: Apache-2.0 */
/* Peer access to the memory of `virtual`.  It is a property of each mapping, which
 * cuCtxEnablePeerAccess does not change.  So it is set again for every mapping when a peer comes or
 * goes. */
#include "driver/driver.h"
#include "resource/virtual/virtual.h"

/* Calls `visit` for each run of mapped granules, until one fails. */
static CUresult each_mapped(const struct rs_virtual *vm,
                            CUresult (*visit)(const void *data, CUdeviceptr address,
                                              size_t size_bytes),
                            const void *data)
{
    CUresult result = CUDA_SUCCESS;

    for (struct rs_virtual_region *region = atomic_load(&vm->regions); region;
         region = region->next) {
        size_t count = region->size_bytes / vm->granule_bytes, end;
        for (size_t i = 0; i < count && result == CUDA_SUCCESS; i = end) {
            for (end = i; end < count && region->handles[end]; end++)
                ;
            if (end > i)
                result = visit(data, region->base + i * vm->granule_bytes,
                               (end - i) * vm->granule_bytes);
            end += end == i;
        }
    }
    return result;
}

static CUresult set_peer_access(const void *data, CUdeviceptr address, size_t size_bytes)
{
    return rs_driver.cuMemSetAccess(address, size_bytes, data, 1);
}

CUresult rs_virtual_set_peer(struct rs_virtual *vm, CUdevice peer, bool allowed)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer},
        .flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE,
    };

    RS_ASSERT(vm->is_still);
    return each_mapped(vm, set_peer_access, &access);
}
