/* SPDX-License-Identifier: Apache-2.0 */
/* Sends file descriptors from an exporter to an importer.
 *
 * Memory for which the driver has no handle goes to another process as file descriptors. The
 * exporter sends them, since the importer cannot take them. If it opened /proc/PID/fd, as it does
 * for the table, it would get the device file anew, without what the driver put behind it; and
 * pidfd_getfd needs the right to attach to the process. The program may sit in a wait that makes no
 * CUDA call (waitpid, as in NVIDIA's simpleIPC), so a thread of the exporter answers. It starts
 * with the first handle of such memory.
 *
 * The importer listens at a socket whose abstract name is a random number, and writes that name
 * into a pipe of the exporter's, which it opens through /proc: as for the table, only a process of
 * the same user can. The exporter connects to the name and sends some descriptors. Each side asks
 * the kernel who the other one is. The importer accepts only the exporter. The exporter sends only
 * to its own user, since another process could take the name of an importer that has ended. The
 * exporter listens at no name, where other users could disturb it, and waits for nobody, so an
 * importer that stops half-way costs it nothing. */
#pragma once

#include "ipc/table.h"

/* ---- the exporter ---- */

/* Returns a new descriptor of a piece of an exported block, or, as piece 0, of the block's pool; -1
 * on failure. The thread calls it, and closes the descriptor. */
typedef int rs_transfer_make(uint32_t slot, uint32_t generation, uint32_t piece);

/* Starts the thread, if it does not run yet, and describes its pipe in *shared. Returns
 * CUDA_ERROR_OUT_OF_MEMORY when the process has no descriptor, memory or thread left for that, and
 * CUDA_ERROR_NOT_SUPPORTED when the process may have no socket or the program has closed the pipe.
 * The caller holds a lock of its own around the calls. */
CUresult rs_transfer_start(struct rs_ipc_pipe *shared, rs_transfer_make *make);

/* ---- the importer ---- */

/* The transfer of one block's descriptors. */
struct rs_transfer {
    const struct rs_exporter *exporter;
    const struct rs_ipc_handle *handle;
    int connection;    /* the socket from which the answer is received; -1: none */
    uint32_t failures; /* rs_ipc_pipe.failures when the exporter was asked */
};

/* Receives the descriptor of a piece. Pieces must be asked for in order. Each wait for the exporter
 * lasts 10 s at most, and ends when the exporter does. Returns CUDA_ERROR_NOT_READY when the
 * exporter cannot send the descriptor, or no longer exports the block. Returns another error, and
 * logs it, when the exporter cannot be reached, does not answer or has ended, or when this process
 * has no descriptor or memory left, or may not open a socket. */
CUresult rs_transfer_next(struct rs_transfer *transfer, uint32_t piece, int *fd);

/* Must follow the last call of rs_transfer_next. */
void rs_transfer_end(struct rs_transfer *transfer);
