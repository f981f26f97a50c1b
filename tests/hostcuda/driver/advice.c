/* SPDX-License-Identifier: Apache-2.0 */
/* Advice about managed memory, and where it was prefetched to: kept for each page of the host, as
 * the driver does, and so shared by allocations that lie on one page. It moves nothing here. */
#include "driver/managed.h"

#include "driver/call.h"
#include "driver/capture.h"
#include "driver/device.h"
#include "driver/lock.h"
#include "driver/memory.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES ((size_t)4096)
#define HOST_BIT   (1u << HC_DEVICES_MAX) /* of accessed_by */
#define NOWHERE    0                      /* a place is a device + 2, the host + 2 = 1 */

struct page {
    bool read_mostly;
    unsigned char preferred, prefetched;
    unsigned short accessed_by;
};

struct pages {
    struct page *first, *end;
};

static struct page *pages; /* of the managed region; all zero: the default */

static bool find_pages(uintptr_t address, size_t bytes, struct pages *found)
{
    const struct hc_region *region = hc_managed_region();
    if (!pages && !(pages = calloc(region->bytes / PAGE_BYTES, sizeof(*pages))))
        return false;
    found->first = pages + (address - region->base) / PAGE_BYTES;
    found->end = pages + (address - region->base + bytes - 1) / PAGE_BYTES + 1;
    return true;
}

/* True if an allocation other than the range itself lies on that page. */
static bool is_shared(size_t page, uintptr_t address, size_t bytes)
{
    const struct hc_region *region = hc_managed_region();
    uintptr_t begin = region->base + page * PAGE_BYTES;
    for (uintptr_t at = begin; at < begin + PAGE_BYTES; at += HC_UNIT_BYTES) {
        if ((at < address || at >= address + bytes) && hc_region_find(region, at))
            return true;
    }
    return false;
}

void hc_advice_forget(uintptr_t address, size_t bytes)
{
    struct pages range;
    if (!pages || !find_pages(address, bytes, &range))
        return;
    for (struct page *page = range.first; page < range.end; page++) {
        if (memcmp(page, &(struct page){0}, sizeof(*page)) &&
            !is_shared((size_t)(page - pages), address, bytes))
            memset(page, 0, sizeof(*page));
    }
}

void hc_advice_prefetched(uintptr_t address, size_t bytes, int device)
{
    struct pages range;
    if (!find_pages(address, bytes, &range))
        abort();
    for (struct page *page = range.first; page < range.end; page++)
        page->prefetched = (unsigned char)(device + 2);
}

static void set_on(struct page *page, CUmem_advise advice, int device)
{
    unsigned short bit = (unsigned short)(device < 0 ? HOST_BIT : 1u << device);
    switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        page->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        page->preferred = (unsigned char)(device + 2);
        break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        page->preferred = NOWHERE;
        break;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
        page->accessed_by |= bit;
        break;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
        page->accessed_by &= (unsigned short)~bit;
        break;
    default:
        break;
    }
}

static bool takes_a_place(CUmem_advise advice)
{
    return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
           advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

static CUresult advise(CUdeviceptr dptr, size_t bytes, CUmem_advise advice, int device)
{
    HC_LOCKED();
    struct pages range;
    CUresult result = hc_capture_check_unsafe();
    if (result)
        return result;
    if (takes_a_place(advice) && device != CU_DEVICE_CPU && !hc_device_at(device))
        return CUDA_ERROR_INVALID_DEVICE;
    if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY ||
        !hc_managed_holds(dptr, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!find_pages(dptr, bytes, &range))
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (struct page *page = range.first; page < range.end; page++)
        set_on(page, advice, device);
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemAdvise(CUdeviceptr dptr, size_t bytes, CUmem_advise advice, CUdevice device)
{
    HC_ENTER(cuMemAdvise);
    return advise(dptr, bytes, advice, device);
}

HC_API CUresult cuMemAdvise_v2(CUdeviceptr dptr, size_t bytes, CUmem_advise advice,
                               CUmemLocation location)
{
    HC_ENTER(cuMemAdvise_v2);
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE && location.type != CU_MEM_LOCATION_TYPE_HOST)
        return takes_a_place(advice) ? CUDA_ERROR_INVALID_VALUE : advise(dptr, bytes, advice, -1);
    return advise(dptr, bytes, advice,
                  location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU);
}

/* ---- questions: what is the same for all pages ---- */

static int common_environment(const struct pages *range, size_t offset)
{
    unsigned char place = ((unsigned char *)range->first)[offset];
    for (const struct page *page = range->first; page < range->end; page++) {
        if (((const unsigned char *)page)[offset] != place)
            place = NOWHERE;
    }
    return place == NOWHERE ? CU_DEVICE_INVALID : place - 2;
}

static void list_accesses(const struct pages *range, int *list, size_t room)
{
    unsigned common = ~0u;
    for (const struct page *page = range->first; page < range->end; page++)
        common &= page->accessed_by;
    for (size_t i = 0; i < room; i++)
        list[i] = CU_DEVICE_INVALID;
    for (int device = 0; device <= HC_DEVICES_MAX && room; device++) {
        if (!(common >> device & 1))
            continue;
        *list++ = device == HC_DEVICES_MAX ? CU_DEVICE_CPU : device;
        room--;
    }
}

static CUresult ask(const struct pages *range, CUmem_range_attribute attribute, int *out,
                    size_t out_bytes)
{
    if (!out || out_bytes < sizeof(*out) || out_bytes % sizeof(*out) ||
        (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && out_bytes != sizeof(*out)))
        return CUDA_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        *out = 1;
        for (const struct page *page = range->first; page < range->end; page++)
            *out &= page->read_mostly;
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
        *out = common_environment(range, offsetof(struct page, preferred));
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        list_accesses(range, out, out_bytes / sizeof(*out));
        return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        *out = common_environment(range, offsetof(struct page, prefetched));
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

HC_API CUresult cuMemRangeGetAttribute(void *out, size_t out_bytes, CUmem_range_attribute attribute,
                                       CUdeviceptr dptr, size_t bytes)
{
    HC_ENTER(cuMemRangeGetAttribute);
    HC_LOCKED();
    struct pages range;
    if (!hc_managed_holds(dptr, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    return find_pages(dptr, bytes, &range) ? ask(&range, attribute, out, out_bytes)
                                           : CUDA_ERROR_OUT_OF_MEMORY;
}

HC_API CUresult cuMemRangeGetAttributes(void **outs, size_t *out_bytes,
                                        CUmem_range_attribute *attributes, size_t count,
                                        CUdeviceptr dptr, size_t bytes)
{
    HC_ENTER(cuMemRangeGetAttributes);
    HC_LOCKED();
    struct pages range;
    CUresult result = CUDA_SUCCESS;
    if (!outs || !out_bytes || !attributes || !count || !hc_managed_holds(dptr, bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (!find_pages(dptr, bytes, &range))
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count && !result; i++)
        result = ask(&range, attributes[i], outs[i], out_bytes[i]);
    return result;
}
