/* SPDX-License-Identifier: Apache-2.0 */
/* Mapped memory between processes: the physical pieces behind a block of `virtual`, each a handle
 * of cuMemCreate, go to the other process as file descriptors and are mapped there side by side.
 *
 * A piece under a live block never moves and never goes back to the driver (resource/virtual), and
 * a freed block that another process has open counts as live until it is closed there.  So the
 * pieces of an exported block stay what they were when it was exported. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Pieces of one size, mapped side by side. */
struct rs_pieces {
    CUdeviceptr base;
    size_t piece_bytes;
    uint32_t count;
};

/* Describes the pieces behind a range.  False when the range is no mapped memory of such pieces, or
 * when the driver does not export them. */
bool rs_pieces_find(CUdeviceptr address, size_t size_bytes, struct rs_pieces *pieces);

/* Makes a file descriptor for the piece that is mapped at `address`, close-on-exec. */
CUresult rs_piece_export(CUdeviceptr address, int *fd);

/* Another process's pieces, mapped here; `mapped` of them so far. */
struct rs_mapped_pieces {
    struct rs_pieces pieces;
    uint32_t mapped;
};

/* Reserves addresses for pieces of that size and number. */
CUresult rs_pieces_reserve(struct rs_mapped_pieces *mapping, size_t piece_bytes, uint32_t count);

/* Maps one more piece.  The descriptor may be closed afterwards. */
CUresult rs_pieces_map_next(struct rs_mapped_pieces *mapping, int fd);

/* Lets the device use the pieces, all of which are mapped. */
CUresult rs_pieces_allow(const struct rs_mapped_pieces *mapping, CUdevice device);

/* Unmaps the pieces and gives their addresses back.  No work may use them any more. */
CUresult rs_pieces_drop(struct rs_mapped_pieces *mapping);
