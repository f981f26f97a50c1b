/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA IPC of blocks that lie inside a driver allocation: what exporter and importer have in
 * common.
 *
 * The driver's handle of such a block names the whole allocation and opens at its beginning.  So
 * the program gets 64 bytes of our own instead, which say where the exporter keeps a table: there
 * the importer's rmmshim finds the driver's handle and the place inside.  The driver of an importer
 * without rmmshim gets bytes that are no handle of its own (a handle with a few altered bytes is
 * refused with CUDA_ERROR_INVALID_HANDLE, seen on an H200; ours has no byte in common with one).
 *
 * The table is a memory file without a name, which others of the same user reach through
 * /proc/PID/fd.  It has no name to guess or to plant, nothing is left behind when the exporter dies
 * in whatever way, other users and other PID namespaces cannot open it, and the seals keep
 * everybody but the exporter from writing to it or cutting it short.  A file in /dev/shm would need
 * a name, an owner check and a way to find what dead processes left; a socket would need a thread
 * that answers. The way through /proc asks for the right to read the exporter (PTRACE_MODE_READ:
 * the same user, and a process that may be dumped), which Yama's ptrace_scope does not touch: that
 * is about attaching.
 *
 * Registering is a lock: while an importer has the block of a slot open it holds a shared lock on
 * the byte of that number, of the kind that belongs to the process (fcntl F_SETLK), so the kernel
 * drops it when the process dies, and a forked child does not keep it.  The exporter asks for such
 * a lock when the block is freed, after it took the block's generation out of the slot; the
 * importer looks at the generation after it took the lock.  One of the two sees the other.  A
 * process that is killed drops its locks when its files are closed, which may be a moment before
 * the GPU has stopped its work; that matters only to what was freed while it had it open, which
 * CUDA forbids. */
#pragma once

#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RS_IPC_SLOTS = 1 << 15, /* blocks that are exported at the same time */
    RS_IPC_NONCE_BYTES = 16,
    RS_IPC_SLOTS_AT = 4096, /* in the file */
};

struct rs_ipc_handle {
    char magic[8];
    uint64_t process_namespace;
    int64_t start_ticks; /* of the exporter, which tells its number from the next process's */
    int32_t process, fd;
    uint32_t slot, generation;
    unsigned char nonce[RS_IPC_NONCE_BYTES]; /* of the table */
    uint64_t sum;
};

_Static_assert(sizeof(struct rs_ipc_handle) == sizeof(CUipcMemHandle), "64 bytes, all ours");

struct rs_ipc_header {
    char magic[8];
    unsigned char nonce[RS_IPC_NONCE_BYTES];
};

struct rs_ipc_slot {
    _Atomic uint32_t generation; /* of the block that is exported here; 0: it was freed */
    uint32_t unused;
    uint64_t offset_bytes; /* of the block from what the driver's handle opens */
    uint64_t size_bytes;
    uint64_t allocation_bytes; /* of what the driver's handle opens */
    CUipcMemHandle native;
};

enum { RS_IPC_FILE_BYTES = RS_IPC_SLOTS_AT + RS_IPC_SLOTS * (int)sizeof(struct rs_ipc_slot) };

static inline size_t rs_ipc_slot_at(uint32_t slot)
{
    return RS_IPC_SLOTS_AT + slot * sizeof(struct rs_ipc_slot);
}

extern const char rs_ipc_magic[8];

/* As it is called in /proc/PID/fd. */
#define RS_IPC_FILE_NAME "rmmshim-ipc"

/* True for a handle of ours, of any version. */
bool rs_ipc_is_ours(const CUipcMemHandle *handle);

/* Closes a handle with its sum. */
void rs_ipc_seal(const struct rs_ipc_handle *from, CUipcMemHandle *to);

/* False when it is of another version, or damaged. */
bool rs_ipc_read(const CUipcMemHandle *from, struct rs_ipc_handle *to);
