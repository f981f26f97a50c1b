/* SPDX-License-Identifier: Apache-2.0 */
/* Pools between two processes, as NVIDIA's sample streamOrderedAllocationIPC uses them: this one
 * exports, a child imports.  The child is forked before the driver is used; its checks come back
 * as bytes, the line of the one that failed, or 0. */
#include "check.h"
#include "hostcuda.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 1024

static const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
static int to_child, to_parent; /* two ends of a pair */
static pid_t child;

/* In the child: tells the line of the check that failed, and ends. */
#define WANT(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            finish(__LINE__);                                                                      \
    } while (0)

_Noreturn static void finish(int line)
{
    _exit(write(to_parent, &line, sizeof(line)) != sizeof(line));
}

static void tell_child(const void *bytes, size_t count, int fd)
{
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    assert_int_equal(sendmsg(to_child, &message, 0), count);
}

static int hear_parent(void *bytes, size_t count)
{
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {.iov_base = bytes, .iov_len = count};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof(control)};
    const struct cmsghdr *header;
    int fd = -1;
    if (recvmsg(to_parent, &message, 0) != (ssize_t)count || !(header = CMSG_FIRSTHDR(&message)))
        _exit(1); /* the test failed before */
    memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    return fd;
}

static int hear_child(void)
{
    int line = -1;
    assert_int_equal(read(to_child, &line, sizeof(line)), sizeof(line));
    return line;
}

/* Lets the child go on to its next step. */
static void step(void)
{
    int line = 0;
    assert_int_equal(write(to_child, &line, sizeof(line)), sizeof(line));
}

static void wait_for_step(void)
{
    int line = 0;
    WANT(write(to_parent, &line, sizeof(line)) == sizeof(line));
    if (read(to_parent, &line, sizeof(line)) != sizeof(line))
        _exit(1);
}

static CUresult import_pool(CUmemoryPool *imported, int fd)
{
    return cuMemPoolImportFromShareableHandle(imported, (void *)(uintptr_t)fd, type, 0);
}

static void check_pool(CUmemoryPool imported, CUmemPoolPtrExportData *data, CUdeviceptr block)
{
    CUmemPoolPtrExportData wrong = *data;
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemAccessDesc access = {.location = location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAccess_flags flags;
    CUdeviceptr other;
    WANT(!cuMemPoolGetAccess(&flags, imported, &location) && !flags);
    WANT(!cuMemPoolSetAccess(imported, &access, 1));
    WANT(!cuMemPoolGetAccess(&flags, imported, &location));
    WANT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    WANT(cuMemAllocFromPoolAsync(&other, 64, imported, 0) == CUDA_ERROR_INVALID_VALUE);
    WANT(cuDeviceSetMemPool(0, imported) == CUDA_ERROR_INVALID_VALUE);
    WANT(!cuMemPoolImportPointer(&other, imported, data) && other == block);
    wrong.reserved[8] ^= 1;
    WANT(cuMemPoolImportPointer(&other, imported, &wrong) == CUDA_ERROR_INVALID_VALUE);
    WANT(cuMemPoolExportPointer(&wrong, block) == CUDA_ERROR_INVALID_VALUE);
}

static void import(void)
{
    CUmemPoolPtrExportData data[2];
    CUmemoryPool imported;
    CUdeviceptr first, second;
    CUcontext ctx;
    unsigned word = 0;
    int fd = hear_parent(data, sizeof(data));
    WANT(!cuInit(0) && !cuDevicePrimaryCtxRetain(&ctx, 0) && !cuCtxSetCurrent(ctx));
    WANT(import_pool(&imported, to_parent) == CUDA_ERROR_INVALID_VALUE);
    WANT(!import_pool(&imported, fd));
    close(fd);
    WANT(!cuMemPoolImportPointer(&first, imported, &data[0]));
    check_pool(imported, &data[0], first);
    WANT(!cuMemcpyDtoH(&word, first, 4) && word == 11);
    WANT(!cuMemPoolImportPointer(&second, imported, &data[1]));
    WANT(!cuMemcpyDtoH(&word, second, 4) && word == 22);
    WANT(!cuMemsetD32(second, 33, WORDS) && !cuCtxSynchronize());
    wait_for_step(); /* the exporter frees the first, too early */
    WANT(!cuMemFree(first) && cuMemFree(first) == CUDA_ERROR_INVALID_VALUE);
    WANT(!cuMemFreeAsync(second, 0) && !cuCtxSynchronize());
    WANT(cuMemcpyDtoH(&word, second, 4));
    WANT(!cuMemPoolDestroy(imported));
    finish(0);
}

TEST(importer_sees_the_bytes_and_frees_first)
{
    CUmemPoolPtrExportData data[2];
    CUmemoryPool pool, plain;
    CUdeviceptr first, second, other;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    unsigned word;
    int fd;
    use_primary();
    OK(cuMemPoolCreate(&plain, &props));
    props.handleTypes = type;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&other, WORDS * 4, plain, 0));
    OK(cuMemAllocFromPoolAsync(&first, WORDS * 4, pool, 0));
    OK(cuMemAllocFromPoolAsync(&second, 3 << 20, pool, 0));
    OK(cuMemsetD32(first, 11, WORDS));
    OK(cuMemsetD32(second, 22, WORDS));
    OK(cuCtxSynchronize());
    assert_int_equal(cuMemPoolExportPointer(&data[0], first), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(cuMemPoolExportToShareableHandle(&fd, plain, type, 0),
                     CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolExportToShareableHandle(&fd, pool, type, 0));
    OK(cuMemPoolExportPointer(&data[0], first));
    OK(cuMemPoolExportPointer(&data[1], second));
    assert_int_equal(cuMemPoolExportPointer(&data[0], other), CUDA_ERROR_INVALID_VALUE);
    tell_child(data, sizeof(data), fd);
    close(fd);
    assert_int_equal(hear_child(), 0);
    OK(cuMemcpyDtoH(&word, second + WORDS * 4 - 4, 4));
    assert_int_equal(word, 33);
    OK(cuMemFreeAsync(first, 0));
    OK(cuCtxSynchronize());
    assert_int_equal(hostcuda_early_frees(), 1);
    step();
    assert_int_equal(hear_child(), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    OK(cuMemFreeAsync(second, 0));
    OK(cuMemFreeAsync(other, 0));
    OK(cuCtxSynchronize());
    assert_int_equal(hostcuda_early_frees(), 1);
    OK(cuMemPoolDestroy(pool));
    OK(cuMemPoolDestroy(plain));
    drop_primary();
}

int unit_prepare(int argc, char **argv)
{
    int pair[2];
    (void)argc;
    (void)argv;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        return 1;
    to_child = pair[0];
    to_parent = pair[1];
    child = fork();
    if (child) {
        close(to_parent);
        return child < 0;
    }
    close(to_child);
    import();
    return 1;
}
