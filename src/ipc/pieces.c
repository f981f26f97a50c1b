/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/pieces.h"

#include "base/check.h"
#include "base/file.h"
#include "driver/driver.h"
#include "ipc/transfer.h"

#include <fcntl.h>

/* ---- the exporter ---- */

/* Finds the piece of `virtual` at an address. cuMemGetAddressRange tells the mapping, and each
 * piece is mapped by itself (facts_h200.txt: vmm.range_is_the_mapping). */
static CUresult find_piece(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes)
{
    CUresult result = rs_driver.cuMemGetAddressRange_v2(start, size_bytes, address);

    if (result != CUDA_SUCCESS)
        return rs_ipc_export_result(result);
    return address - *start < *size_bytes ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult rs_pieces_find(CUdeviceptr address, size_t size_bytes, struct rs_ipc_slot *place)
{
    CUdeviceptr base, start, at;
    size_t piece_bytes, bytes;
    CUresult result = find_piece(address, &base, &piece_bytes);
    int fd;

    /* The first piece is exported once, to see whether the driver can do that. */
    if (result == CUDA_SUCCESS)
        result = rs_piece_export(base, &fd);
    if (result != CUDA_SUCCESS)
        return result;
    rs_file_close(fd);
    *place = (struct rs_ipc_slot){.offset_bytes = address - base, .size_bytes = size_bytes};
    for (at = base; at < address + size_bytes; at += piece_bytes, place->pieces++) {
        result = find_piece(at, &start, &bytes);
        if (result != CUDA_SUCCESS)
            return result;
        if (place->pieces == UINT32_MAX || start != at || bytes != piece_bytes)
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    place->allocation_bytes = at - base;
    RS_ASSERT(place->offset_bytes + size_bytes <= place->allocation_bytes);
    return CUDA_SUCCESS;
}

/* Retains the handle during the export, so that it stays the handle of this piece. */
CUresult rs_piece_export(CUdeviceptr address, int *fd)
{
    CUmemGenericAllocationHandle handle;
    CUresult result;

    if (!rs_driver.cuMemRetainAllocationHandle || !rs_driver.cuMemRelease ||
        !rs_driver.cuMemExportToShareableHandle)
        return CUDA_ERROR_NOT_SUPPORTED;
    RS_RELAXED_GUARD();
    result = rs_driver.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);
    if (result != CUDA_SUCCESS)
        return rs_ipc_export_result(result);
    result = rs_driver.cuMemExportToShareableHandle(fd, handle,
                                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    (void)rs_driver.cuMemRelease(handle);
    if (result == CUDA_SUCCESS)
        (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return rs_ipc_export_result(result);
}

/* ---- the importer ---- */

/* Maps one piece. The mapping keeps the memory alive, so the handle is released at once. */
static CUresult map_piece(CUdeviceptr address, size_t size_bytes, int fd)
{
    CUmemGenericAllocationHandle handle;
    CUresult result = rs_driver.cuMemImportFromShareableHandle(
        &handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

    if (result != CUDA_SUCCESS)
        return result;
    result = rs_driver.cuMemMap(address, size_bytes, 0, handle, 0);
    (void)rs_driver.cuMemRelease(handle);
    return result;
}

static CUresult map_all(struct rs_transfer *transfer, const struct rs_ipc_slot *slot,
                        CUdeviceptr base, size_t *mapped_bytes)
{
    size_t piece_bytes = slot->allocation_bytes / slot->pieces;
    CUresult result = CUDA_SUCCESS;

    RS_ASSERT(slot->allocation_bytes % slot->pieces == 0);
    for (uint32_t i = 0; i < slot->pieces && result == CUDA_SUCCESS; i++) {
        int fd;
        result = rs_transfer_next(transfer, i, &fd);
        if (result != CUDA_SUCCESS)
            break;
        result = map_piece(base + *mapped_bytes, piece_bytes, fd);
        rs_file_close(fd);
        *mapped_bytes += result == CUDA_SUCCESS ? piece_bytes : 0;
    }
    return result;
}

static CUresult allow_access(CUdeviceptr base, size_t size_bytes)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUresult result = rs_driver.cuCtxGetDevice(&access.location.id);

    return result == CUDA_SUCCESS ? rs_driver.cuMemSetAccess(base, size_bytes, &access, 1) : result;
}

/* Unmaps the memory and frees its addresses. If the memory stays mapped, the addresses are kept. */
static CUresult unmap(CUdeviceptr base, size_t mapped_bytes, size_t size_bytes)
{
    CUresult result = mapped_bytes > 0 ? rs_driver.cuMemUnmap(base, mapped_bytes) : CUDA_SUCCESS;

    return result == CUDA_SUCCESS ? rs_driver.cuMemAddressFree(base, size_bytes) : result;
}

CUresult rs_pieces_map(const struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                       const struct rs_ipc_slot *slot, CUdeviceptr *base)
{
    struct rs_transfer transfer = {.exporter = exporter, .handle = handle, .connection = -1};
    size_t mapped_bytes = 0;
    CUresult result;

    if (!rs_driver.cuMemAddressReserve || !rs_driver.cuMemAddressFree || !rs_driver.cuMemMap ||
        !rs_driver.cuMemUnmap || !rs_driver.cuMemSetAccess || !rs_driver.cuMemRelease ||
        !rs_driver.cuMemImportFromShareableHandle)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (slot->allocation_bytes % slot->pieces != 0)
        return CUDA_ERROR_INVALID_VALUE;
    RS_RELAXED_GUARD();
    result = rs_driver.cuMemAddressReserve(base, slot->allocation_bytes, 0, 0, 0);
    if (result != CUDA_SUCCESS)
        return result;
    result = map_all(&transfer, slot, *base, &mapped_bytes);
    rs_transfer_end(&transfer);
    if (result == CUDA_SUCCESS)
        result = allow_access(*base, mapped_bytes);
    if (result != CUDA_SUCCESS)
        (void)unmap(*base, mapped_bytes, slot->allocation_bytes);
    return result;
}

CUresult rs_pieces_unmap(CUdeviceptr base, size_t size_bytes)
{
    RS_RELAXED_GUARD();
    return unmap(base, size_bytes, size_bytes);
}
