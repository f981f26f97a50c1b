/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/pieces.h"

#include "base/check.h"
#include "base/file.h"
#include "driver/capture.h"
#include "driver/driver.h"

#include <fcntl.h>

/* ---- the exporter ---- */

/* The driver's answer for mapped memory is the mapping, so one piece of `virtual`
 * (facts_h200.txt: vmm.range_is_the_mapping). */
static bool find_piece(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes)
{
    return rs_driver.cuMemGetAddressRange_v2(start, size_bytes, address) == CUDA_SUCCESS &&
           *size_bytes > 0 && address - *start < *size_bytes;
}

/* True when pieces of one size, and nothing else, lie behind the range. */
static bool are_alike(CUdeviceptr end, struct rs_pieces *pieces)
{
    CUdeviceptr start;
    size_t size_bytes;

    for (pieces->count = 0; pieces->base + pieces->count * pieces->piece_bytes < end;
         pieces->count++) {
        CUdeviceptr at = pieces->base + pieces->count * pieces->piece_bytes;
        if (pieces->count == UINT32_MAX || !find_piece(at, &start, &size_bytes) || start != at ||
            size_bytes != pieces->piece_bytes)
            return false;
    }
    return pieces->count > 0;
}

/* The first piece is exported once, to see that the driver does. */
bool rs_pieces_find(CUdeviceptr address, size_t size_bytes, struct rs_pieces *pieces)
{
    int fd;

    if (!rs_driver.cuMemRetainAllocationHandle || !rs_driver.cuMemRelease ||
        !rs_driver.cuMemExportToShareableHandle)
        return false;
    if (!find_piece(address, &pieces->base, &pieces->piece_bytes) ||
        rs_piece_export(pieces->base, &fd) != CUDA_SUCCESS)
        return false;
    rs_file_close(fd);
    return are_alike(address + size_bytes, pieces);
}

/* The handle is retained meanwhile, so that it stays a handle of this piece. */
CUresult rs_piece_export(CUdeviceptr address, int *fd)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUmemGenericAllocationHandle handle;
    CUresult result = rs_driver.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);

    if (result == CUDA_SUCCESS) {
        result = rs_driver.cuMemExportToShareableHandle(
            fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        (void)rs_driver.cuMemRelease(handle);
    }
    rs_capture_restore(mode);
    if (result == CUDA_SUCCESS)
        (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return result;
}

/* ---- the importer ---- */

static bool is_supported(void)
{
    return rs_driver.cuMemAddressReserve && rs_driver.cuMemAddressFree && rs_driver.cuMemMap &&
           rs_driver.cuMemUnmap && rs_driver.cuMemSetAccess && rs_driver.cuMemRelease &&
           rs_driver.cuMemImportFromShareableHandle;
}

CUresult rs_pieces_reserve(struct rs_mapped_pieces *mapping, size_t piece_bytes, uint32_t count)
{
    CUstreamCaptureMode mode;
    size_t size_bytes;
    CUresult result;

    *mapping = (struct rs_mapped_pieces){.pieces = {0, piece_bytes, count}};
    if (!is_supported())
        return CUDA_ERROR_NOT_SUPPORTED;
    if (__builtin_mul_overflow(piece_bytes, (size_t)count, &size_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    mode = rs_capture_relax();
    result = rs_driver.cuMemAddressReserve(&mapping->pieces.base, size_bytes, 0, 0, 0);
    rs_capture_restore(mode);
    return result;
}

/* The mapping keeps the memory alive, so the handle is not needed after it. */
CUresult rs_pieces_map_next(struct rs_mapped_pieces *mapping, int fd)
{
    const struct rs_pieces *pieces = &mapping->pieces;
    CUstreamCaptureMode mode = rs_capture_relax();
    CUmemGenericAllocationHandle handle;
    CUresult result = rs_driver.cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    RS_ASSERT(mapping->mapped < pieces->count);
    if (result == CUDA_SUCCESS) {
        result = rs_driver.cuMemMap(pieces->base + mapping->mapped * pieces->piece_bytes,
                                    pieces->piece_bytes, 0, handle, 0);
        (void)rs_driver.cuMemRelease(handle);
    }
    rs_capture_restore(mode);
    mapping->mapped += result == CUDA_SUCCESS;
    return result;
}

CUresult rs_pieces_allow(const struct rs_mapped_pieces *mapping, CUdevice device)
{
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result;

    RS_ASSERT(mapping->mapped == mapping->pieces.count);
    result = rs_driver.cuMemSetAccess(mapping->pieces.base,
                                      mapping->mapped * mapping->pieces.piece_bytes, &access, 1);
    rs_capture_restore(mode);
    return result;
}

/* Addresses that are still mapped are not given back. */
CUresult rs_pieces_drop(struct rs_mapped_pieces *mapping)
{
    const struct rs_pieces *pieces = &mapping->pieces;
    CUstreamCaptureMode mode = rs_capture_relax();
    CUresult result = CUDA_SUCCESS;

    if (mapping->mapped > 0)
        result = rs_driver.cuMemUnmap(pieces->base, mapping->mapped * pieces->piece_bytes);
    if (result == CUDA_SUCCESS && pieces->base)
        result = rs_driver.cuMemAddressFree(pieces->base, pieces->count * pieces->piece_bytes);
    if (result == CUDA_SUCCESS)
        *mapping = (struct rs_mapped_pieces){.mapped = 0};
    rs_capture_restore(mode);
    return result;
}
