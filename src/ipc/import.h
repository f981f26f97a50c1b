/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA IPC, the importer's side: handles that another process's rmmshim made.  See ipc/table.h.
 *
 * All of it works whatever this process's own settings are. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* cuIpcOpenMemHandle, by the driver's function of the version that the program called.  False for a
 * handle that is not of rmmshim's making. */
bool rs_import_open(CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned), CUdeviceptr *address,
                    const CUipcMemHandle *handle, unsigned flags, CUresult *result);

/* The driver opened one of its own handles at that address. */
void rs_import_note_native(CUdeviceptr address);

/* cuIpcCloseMemHandle.  False for an address that no such handle gave. */
bool rs_import_close(CUdeviceptr address, CUresult *result);

enum rs_imported {
    RS_IMPORTED_NOT,     /* not in memory that was opened here */
    RS_IMPORTED_BLOCK,   /* in a block that is open */
    RS_IMPORTED_OUTSIDE, /* beside all of them, in the same allocation of the exporter's */
};

/* Takes no lock. */
enum rs_imported rs_import_find(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes);

/* The handle that the open block which holds address came from. */
bool rs_import_handle(CUdeviceptr address, CUipcMemHandle *handle);

/* A context has ended: what it had open is closed. */
void rs_import_context_ended(void);
