/* SPDX-License-Identifier: Apache-2.0 */
/* A pool that gives another process a handle for a block inside its memory: the other process gets
 * the whole memory from its start, and reads what belongs to somebody else. */
#include "bugs/bug.h"

#include <sys/wait.h>
#include <unistd.h>

#define MINE   0x11111111u
#define OTHERS 0x22222222u

/* The other process: what is the first word behind the handle? */
static unsigned first_word_behind(int handle_pipe)
{
    CUipcMemHandle handle;
    CUdeviceptr opened;
    unsigned word;
    if (read(handle_pipe, &handle, sizeof(handle)) != sizeof(handle))
        exit(1);
    begin();
    OK(cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuMemcpyDtoH(&word, opened, sizeof(word)));
    OK(cuIpcCloseMemHandle(opened));
    return word;
}

int main(int argc, char **argv)
{
    bool bug = wants_bug(argc, argv);
    int handles[2], status;
    OK(pipe(handles));
    pid_t child = fork(); /* before the driver is used */
    if (!child)
        return first_word_behind(handles[0]) == MINE ? 0 : 42;
    begin();
    CUdeviceptr pool, block;
    CUipcMemHandle handle;
    OK(cuMemAlloc(&pool, 4 << 20));
    OK(cuMemsetD32(pool, OTHERS, (4 << 20) / 4));
    if (bug)
        block = pool + 8192;
    else
        OK(cuMemAlloc(&block, 2 << 20)); /* what may be exported is an allocation of its own */
    OK(cuMemsetD32(block, MINE, 1024));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&handle, block));
    if (write(handles[1], &handle, sizeof(handle)) != sizeof(handle))
        return 1;
    OK(waitpid(child, &status, 0) != child);
    return status != (bug ? 42 << 8 : 0);
}
