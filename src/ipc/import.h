/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA IPC, the importer's side: opens handles that rmmshim made in another process. How this works
 * is told in ipc/table.h. It works with any settings of this process, even if no stack serves. All
 * functions are thread safe. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Answers cuIpcOpenMemHandle; `open` is the driver's function of the version that the program
 * called.  Returns true with the answer in *result, and on success the block's address in *address.
 * Returns false when the driver must answer: rmmshim did not make the handle, or the driver has no
 * IPC. */
bool rs_import_open(CUresult (*open)(CUdeviceptr *, CUipcMemHandle, unsigned), CUdeviceptr *address,
                    const CUipcMemHandle *handle, unsigned flags, CUresult *result);

/* Notes that the driver opened one of its own handles, at address. */
void rs_import_note_native(CUdeviceptr address);

/* Answers cuIpcCloseMemHandle. Returns true with the answer in *result; that is
 * CUDA_ERROR_INVALID_VALUE for an address in opened memory at which no open block begins. Returns
 * false when the driver must answer: no handle of ours opened memory at the address, or a handle of
 * the driver's was also opened there, which is closed first. */
bool rs_import_close(CUdeviceptr address, CUresult *result);

enum rs_imported {
    RS_IMPORTED_NOT,     /* the address is in no memory that a handle of ours opened here */
    RS_IMPORTED_BLOCK,   /* the address is in an open block */
    RS_IMPORTED_OUTSIDE, /* the address is in the exporter's allocation, but in no open block */
};

/* Tells where address lies. For RS_IMPORTED_BLOCK stores the block's start and its size in bytes.
 * Takes no lock, except during a call that may end a context (rs_import_context_ending). */
enum rs_imported rs_import_find(CUdeviceptr address, CUdeviceptr *start, size_t *size_bytes);

/* True for memory that a handle of ours opened here. Only cuIpcCloseMemHandle may give it back. A
 * free of it must not reach the driver, which would free memory imported from a pool. */
static inline bool rs_import_has(CUdeviceptr address)
{
    CUdeviceptr start;
    size_t size_bytes;

    return rs_import_find(address, &start, &size_bytes) != RS_IMPORTED_NOT;
}

/* Returns the context in which the open block that begins at address was opened; NULL when there is
 * none. If it was opened in several contexts, returns the current one of these. */
CUcontext rs_import_context(CUdeviceptr address);

/* Called in a forked child. Forgets all opened memory, since what the parent has opened is not open
 * in a child. */
void rs_import_forked(void);

/* Called around a driver call that may end a context. rs_import_context_ended forgets all memory
 * that was opened in a context that has ended. Between the two calls rs_import_find asks the driver
 * whether the memory that it finds still exists. */
void rs_import_context_ending(void);
void rs_import_context_ended(void);
