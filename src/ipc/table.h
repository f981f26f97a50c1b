/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA IPC of blocks inside a driver allocation: the format that exporter and importer share.
 *
 * The driver's handle of such a block names the whole allocation, and opens at the allocation's
 * beginning. So the program gets 64 bytes of our own instead, which say where the exporter keeps a
 * table. In that table the importer's rmmshim finds the driver's handle and the block's offset. An
 * importer without rmmshim gets CUDA_ERROR_INVALID_HANDLE: its driver refused a handle with a few
 * altered bytes (seen on an H200), and ours has no byte of a driver's handle.
 *
 * The table is a memory file without a name, which processes of the same user open through
 * /proc/PID/fd. No name can be guessed or planted, and nothing is left behind however the exporter
 * dies. Other users and other PID namespaces cannot open the file. Its seals (since Linux 5.1) keep
 * all processes but the exporter from writing to it or truncating it. A file in /dev/shm would need
 * a name, an owner check and a search for files of dead processes. A socket would need a thread
 * that answers; there is one only for memory without a handle of the driver's (ipc/transfer.h).
 * Opening the file through /proc needs the right to read the exporter's memory (PTRACE_MODE_READ:
 * the same user, and a process that may be dumped). Yama's ptrace_scope does not restrict that,
 * since it only concerns attaching.
 *
 * An importer registers with a lock: while it has the block of a slot open, it holds a shared lock
 * on the byte of the file whose offset is the slot's number. The lock belongs to the process (fcntl
 * F_SETLK), so the kernel drops it when the process dies, and a forked child does not keep it. When
 * the block is freed, the exporter clears the slot's generation and then asks for the lock; an
 * importer takes the lock and then reads the generation. So at least one of them notices the other.
 * A killed process loses its locks when its files are closed, perhaps a moment before its GPU work
 * stops. That affects only blocks that were freed while the process had them open, which CUDA
 * forbids. */
#pragma once

#include "driver/cuda.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    RS_IPC_SLOTS = 1 << 15, /* the most blocks that are exported at the same time */
    RS_IPC_NONCE_BYTES = 16,
    RS_IPC_SLOTS_AT = 4096, /* the offset of the slots in the file */
};

struct rs_ipc_handle {
    char magic[8];
    uint64_t process_namespace;
    int64_t start_ticks; /* the exporter's start time, by which it is told from a later process of
                            the same number */
    int32_t process, fd;
    uint32_t slot, generation;
    unsigned char nonce[RS_IPC_NONCE_BYTES]; /* a random number that identifies the table */
    uint64_t sum;
};

_Static_assert(sizeof(struct rs_ipc_handle) == sizeof(CUipcMemHandle), "64 bytes, all ours");

/* The pipe by which the exporter is asked for descriptors (ipc/transfer.h). */
struct rs_ipc_pipe {
    _Atomic uint32_t failures; /* grows when a request cannot be answered at all, and when the
                                  thread ends */
    _Atomic int32_t fd;        /* the exporter's descriptor of the pipe's end to write to; 0: nobody
                                  answers */
    uint64_t device, inode;
};

struct rs_ipc_header {
    char magic[8];
    unsigned char nonce[RS_IPC_NONCE_BYTES];
    struct rs_ipc_pipe pipe;
};

struct rs_ipc_slot {
    _Atomic uint32_t generation; /* the generation of the block that this slot exports; 0: the block
                                    was freed */
    uint32_t pieces; /* 0: the block lies in an allocation, which `native` opens, or `pooled` if
                        `pool` is not 0. Otherwise the number of pieces of mapped memory, all of one
                        size, that the exporter sends as descriptors */
    uint64_t offset_bytes; /* offset of the block in the allocation, or in the pieces */
    uint64_t size_bytes;
    uint64_t allocation_bytes; /* size of the allocation, or of all pieces together */
    uint64_t pool; /* 0: the allocation is in no pool. Otherwise the number of its pool, which the
                      exporter sends as a descriptor; `pooled` opens the allocation in that pool */
    union {
        CUipcMemHandle native;
        CUmemPoolPtrExportData pooled;
    };
};

enum { RS_IPC_FILE_BYTES = RS_IPC_SLOTS_AT + RS_IPC_SLOTS * (int)sizeof(struct rs_ipc_slot) };

static inline size_t rs_ipc_slot_at(uint32_t slot)
{
    return RS_IPC_SLOTS_AT + slot * sizeof(struct rs_ipc_slot);
}

extern const char rs_ipc_magic[8];

/* Translates the driver's answer to an attempt to export memory. Errors that say that the memory
 * cannot be shared become CUDA_ERROR_NOT_SUPPORTED. The error of a process that has no descriptor
 * left becomes CUDA_ERROR_OUT_OF_MEMORY. */
static inline CUresult rs_ipc_export_result(CUresult result)
{
    switch ((int)result) {
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_NOT_PERMITTED:
        return CUDA_ERROR_NOT_SUPPORTED;
    case CUDA_ERROR_OPERATING_SYSTEM:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return result;
    }
}

/* The name with which the memory file is made; /proc/PID/fd shows it as "/memfd:NAME (deleted)". */
#define RS_IPC_FILE_NAME "rmmshim-ipc"

/* True for a handle that any version of rmmshim made. */
bool rs_ipc_is_ours(const CUipcMemHandle *handle);

/* Writes a handle with its checksum. */
void rs_ipc_seal(const struct rs_ipc_handle *from, CUipcMemHandle *to);

/* Decodes a handle. Returns false when it is of another version or damaged. */
bool rs_ipc_read(const CUipcMemHandle *from, struct rs_ipc_handle *to);

/* ---- tables of other processes that are open here ----
 *
 * These functions find such tables, register this process in them, and report why that fails.
 * Callers hold a lock of their own around the calls, except for rs_ipc_say_refused. */

struct rs_exporter;

/* Returns the table that the handle names, and opens it if it is not open yet; NULL with the CUDA
 * error in *result when that fails. */
struct rs_exporter *rs_exporter_use(const struct rs_ipc_handle *handle, CUresult *result);

/* Ends a use of the table, once for each successful rs_exporter_use. The last call closes the
 * table, which drops all of this process's locks on it. */
void rs_exporter_leave(struct rs_exporter *exporter);

/* Locks the slot of the handle's block, and then copies the slot into *slot. While the slot is
 * locked the exporter does not reuse it, unless the block's context ends in the exporter. Returns
 * false with the CUDA error in *result when that fails; the lock may then be held, so the caller
 * must call rs_exporter_unlock in any case. */
bool rs_exporter_lock(struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                      struct rs_ipc_slot *slot, CUresult *result);
void rs_exporter_unlock(struct rs_exporter *exporter, uint32_t slot);

/* Copies the header of the table, in which the pipe may have changed. Returns false when the header
 * cannot be read. */
bool rs_exporter_read(const struct rs_exporter *exporter, struct rs_ipc_header *header);

/* Returns true while the process that made the handle runs; else false with the CUDA error in
 * *result. */
bool rs_exporter_is_running(const struct rs_ipc_handle *handle, CUresult *result);

/* An expression that logs why an open is refused, once for each place in the code.  Its value is
 * `error`. */
#define RS_IPC_REFUSE(error, reason)                                                               \
    ({                                                                                             \
        static bool said;                                                                          \
        rs_ipc_say_refused(&said, reason);                                                         \
        error;                                                                                     \
    })

void rs_ipc_say_refused(bool *said, const char *reason);

/* True, with the CUDA error in *result, when a system call of an importer has failed by `error`
 * since its process lacks descriptors or memory. */
static inline bool rs_ipc_is_lack(int error, CUresult *result)
{
    if (error == EMFILE || error == ENFILE)
        *result = RS_IPC_REFUSE(CUDA_ERROR_OUT_OF_MEMORY,
                                "this process has no file descriptor left (ulimit -n)");
    else if (error == ENOMEM || error == ENOBUFS)
        *result = RS_IPC_REFUSE(CUDA_ERROR_OUT_OF_MEMORY,
                                "this process has too little host memory left to open memory "
                                "that another process shares");
    else
        return false;
    return true;
}
