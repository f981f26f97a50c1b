/* SPDX-License-Identifier: Apache-2.0 */
/* Legacy IPC between two processes: this one exports, a child opens. The child is forked before the
 * driver is used, and its checks come back as its exit status. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

#define WORDS 1024

struct message {
    CUipcMemHandle small, large;
};

/* In the child: ends it with the line of the check that failed. */
#define WANT(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            _exit(__LINE__ % 250 + 1);                                                             \
    } while (0)

static CUresult open_handle(CUdeviceptr *pointer, CUipcMemHandle handle)
{
    return cuIpcOpenMemHandle(pointer, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

static unsigned word_at(CUdeviceptr pointer)
{
    unsigned word = 0;
    WANT(!cuMemcpyDtoH(&word, pointer, sizeof(word)));
    return word;
}

static void import(const struct message *message)
{
    CUcontext ctx, other;
    CUdeviceptr small, large, again;
    CUipcMemHandle bad = message->small;
    size_t bytes;
    WANT(!cuInit(0) && !cuDevicePrimaryCtxRetain(&ctx, 0) && !cuCtxSetCurrent(ctx));
    WANT(!open_handle(&small, message->small) && !open_handle(&large, message->large));
    WANT(word_at(small) == 11 && word_at(large) == 22);
    WANT(!cuMemGetAddressRange(NULL, &bytes, small) && bytes == WORDS * 4);
    WANT(!open_handle(&again, message->small) && again == small);
    WANT(!cuIpcCloseMemHandle(small) && word_at(small) == 11);
    WANT(!cuIpcCloseMemHandle(small));
    WANT(cuIpcCloseMemHandle(small) == CUDA_ERROR_INVALID_VALUE);
    WANT(cuMemFree(large) == CUDA_ERROR_INVALID_VALUE);
    WANT(!cuMemsetD32(large, 33, 1) && !cuCtxSynchronize()); /* the exporter will see it */
    bad.reserved[63] = 1;
    WANT(open_handle(&again, bad) == CUDA_ERROR_INVALID_HANDLE);
    WANT(!cuCtxCreate(&other, NULL, 0, 0) && !open_handle(&small, message->small));
    WANT(!cuCtxDestroy(other)); /* closes what it opened */
    WANT(cuIpcCloseMemHandle(small) == CUDA_ERROR_INVALID_VALUE);
    WANT(!cuIpcCloseMemHandle(large));
    _exit(0);
}

static int to_child[2];
static pid_t child;

TEST(importer_sees_the_same_bytes)
{
    struct message message;
    CUdeviceptr neighbour, small, large, opened;
    unsigned word;
    int status;
    use_primary();
    OK(cuMemAlloc(&neighbour, 512));
    OK(cuMemAlloc(&small, WORDS * 4));
    OK(cuMemAlloc(&large, 4 << 20));
    OK(cuMemsetD32(small, 11, WORDS));
    OK(cuMemsetD32(large, 22, WORDS));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&message.small, small + 16));
    OK(cuIpcGetMemHandle(&message.large, large));
    assert_int_equal(open_handle(&opened, message.small), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(write(to_child[1], &message, sizeof(message)), sizeof(message));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    OK(cuMemcpyDtoH(&word, large, 4));
    assert_int_equal(word, 33);
    OK(cuMemFree(neighbour));
    OK(cuMemFree(small));
    OK(cuMemFree(large));
    drop_primary();
}

int unit_prepare(int argc, char **argv)
{
    struct message message;
    (void)argc;
    (void)argv;
    if (pipe(to_child))
        return 1;
    child = fork();
    if (!child) {
        close(to_child[1]);
        if (read(to_child[0], &message, sizeof(message)) == sizeof(message))
            import(&message);
        return 1;
    }
    return 0;
}
