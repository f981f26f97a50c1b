/* SPDX-License-Identifier: Apache-2.0 */
/* Shares mapped memory with other processes. A block of `virtual` consists of physical pieces, each
 * made by cuMemCreate. They go to the other process as file descriptors (ipc/transfer.h) and are
 * mapped there side by side.
 *
 * The pieces of an exported block stay the same while it is live, since `virtual` then neither
 * moves them nor gives them back to the driver; a freed block that another process has open counts
 * as live. What an importer has mapped stays valid when the exporter ends. */
#pragma once

#include "ipc/table.h"

/* Describes the pieces behind a range of addresses in `pieces`, `offset_bytes`, `size_bytes` and
 * `allocation_bytes` of *place, and clears its other fields. Returns CUDA_ERROR_NOT_SUPPORTED when
 * the range is not mapped in pieces of one size, or cannot be exported; CUDA_ERROR_OUT_OF_MEMORY
 * when the process has no descriptor left; or another error of the driver. */
CUresult rs_pieces_find(CUdeviceptr address, size_t size_bytes, struct rs_ipc_slot *place);

/* Makes a descriptor, close-on-exec, for the piece that is mapped at address. Returns the errors of
 * rs_pieces_find. */
CUresult rs_piece_export(CUdeviceptr address, int *fd);

/* Receives the pieces of a slot and maps them, at *base, for the device of the current context.
 * Returns the errors of rs_transfer_next (ipc/transfer.h) when the exporter does not send all
 * pieces, or the driver's error. */
CUresult rs_pieces_map(const struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                       const struct rs_ipc_slot *slot, CUdeviceptr *base);

/* Undoes rs_pieces_map.  No work may use the memory any more. */
CUresult rs_pieces_unmap(CUdeviceptr base, size_t size_bytes);
