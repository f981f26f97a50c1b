/* SPDX-License-Identifier: Apache-2.0 */
/* The exporter's thread that sends descriptors to importers (ipc/socket.h).  The program may sit in
 * a wait that makes no call of CUDA (waitpid, as in NVIDIA's simpleIPC), so no call of the program
 * can answer.  The thread begins with the first handle that needs it, and blocks all signals. */
#pragma once

#include "ipc/socket.h"

#include <stdbool.h>

/* Makes the descriptors that a request asks for, at most RS_IPC_DESCRIPTORS_MAX, and returns their
 * number; 0 with the CUDA error in *result.  Called on the thread, which closes them. */
typedef unsigned rs_server_make(const struct rs_ipc_request *request, int *descriptors,
                                CUresult *result);

/* Starts the thread unless it runs.  False when it cannot be started, or when the program has
 * closed its socket.  The caller holds a lock of its own around the calls. */
bool rs_server_start(const unsigned char nonce[RS_IPC_NONCE_BYTES], rs_server_make *make);
