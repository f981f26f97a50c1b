/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: checkpoints of other processes.  Only their states are kept, in a file for each
 * process in the folder HOSTCUDA_CHECKPOINTS; no memory moves, and no call of that process blocks.
 * Without the folder no process has a checkpoint. */
#include "driver/call.h"

#include <stdio.h>
#include <stdlib.h>

enum { RUNNING, LOCKED, CHECKPOINTED };

static FILE *open_file(int process, const char *mode)
{
    const char *folder = getenv("HOSTCUDA_CHECKPOINTS");
    char path[4096];

    if (!folder)
        return NULL;
    snprintf(path, sizeof(path), "%s/%d", folder, process);
    return fopen(path, mode);
}

static CUresult read_state(int process, int *state)
{
    FILE *file = open_file(process, "r");
    int found = file ? fgetc(file) - '0' : -1;

    if (file)
        (void)fclose(file);
    *state = found;
    return found >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult go(int process, int from, int to)
{
    int state;
    CUresult result = read_state(process, &state);
    FILE *file;

    if (result != CUDA_SUCCESS)
        return result;
    if (state != from)
        return CUDA_ERROR_ILLEGAL_STATE;
    file = open_file(process, "w");
    if (!file || fprintf(file, "%d", to) < 0 || fclose(file) != 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    return CUDA_SUCCESS;
}

HC_API CUresult cuCheckpointProcessGetState(int process, CUprocessState *state)
{
    HC_ENTER(cuCheckpointProcessGetState);
    int found;
    CUresult result = read_state(process, &found);
    *state = (CUprocessState)found;
    return result;
}

HC_API CUresult cuCheckpointProcessLock(int process, CUcheckpointLockArgs *arguments)
{
    HC_ENTER(cuCheckpointProcessLock);
    if (arguments && (arguments->reserved0 || arguments->reserved1[0]))
        return CUDA_ERROR_INVALID_VALUE;
    return go(process, RUNNING, LOCKED);
}

HC_API CUresult cuCheckpointProcessCheckpoint(int process, CUcheckpointCheckpointArgs *arguments)
{
    HC_ENTER(cuCheckpointProcessCheckpoint);
    (void)arguments;
    return go(process, LOCKED, CHECKPOINTED);
}

HC_API CUresult cuCheckpointProcessRestore(int process, CUcheckpointRestoreArgs *arguments)
{
    HC_ENTER(cuCheckpointProcessRestore);
    (void)arguments;
    return go(process, CHECKPOINTED, LOCKED);
}

HC_API CUresult cuCheckpointProcessUnlock(int process, CUcheckpointUnlockArgs *arguments)
{
    HC_ENTER(cuCheckpointProcessUnlock);
    (void)arguments;
    return go(process, LOCKED, RUNNING);
}
