/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped memory between processes: the physical pieces behind a block of `virtual`, each made by
 * cuMemCreate, go to the other process as file descriptors (ipc/transfer.h) and are mapped there
 * side by side.
 *
 * `virtual` moves no piece under a live block and gives none back to the driver; a freed block that
 * another process has open counts as live.  So the pieces of an exported block stay what they were
 * when it was exported.  What is mapped here stays valid when the exporter ends. */
#pragma once

#include "ipc/table.h"

/* Describes the pieces behind a range in `pieces`, `offset_bytes`, `size_bytes` and
 * `allocation_bytes` of *place, and clears its other fields. Returns CUDA_ERROR_NOT_SUPPORTED when
 * the range is not mapped memory in pieces of one size, or when it cannot be exported;
 * CUDA_ERROR_OUT_OF_MEMORY when the process has no descriptor left; or another error of the driver.
 */
CUresult rs_pieces_find(CUdeviceptr address, size_t size_bytes, struct rs_ipc_slot *place);

/* Makes a descriptor for the piece that is mapped at address, close-on-exec.  Returns the errors of
 * rs_pieces_find. */
CUresult rs_piece_export(CUdeviceptr address, int *fd);

/* Maps the pieces of a slot for the device of the current context, at *base. Returns the errors of
 * rs_transfer_next (ipc/transfer.h) when the exporter does not send them all, or the driver's
 * error. */
CUresult rs_pieces_map(const struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                       const struct rs_ipc_slot *slot, CUdeviceptr *base);

/* Undoes rs_pieces_map.  No work may use the memory any more. */
CUresult rs_pieces_unmap(CUdeviceptr base, size_t size_bytes);
