/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: legacy IPC. A handle names the memory file of its process and a place in it; it
 * stands for the whole allocation, whatever address inside was given. */
#include "driver/call.h"
#include "driver/capture.h"
#include "driver/device.h"
#include "driver/ipc.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct ipc_handle {
    char magic[8];
    int32_t pid, fd, device;
    int32_t zero;
    uint64_t offset, size, id;
    uint64_t sum; /* of all before */
};

_Static_assert(sizeof(struct ipc_handle) <= CU_IPC_HANDLE_SIZE, "the handle has no room for it");

/* An opened handle; opening it again gives the same address. */
struct import {
    struct ipc_handle handle;
    struct hc_alloc *alloc;
    unsigned count;
    struct import *next;
};

static struct import *imports;

static uint64_t sum_of(const struct ipc_handle *handle)
{
    uint64_t sum = 14695981039346656037u;
    const unsigned char *bytes = (const unsigned char *)handle;
    for (size_t i = 0; i < offsetof(struct ipc_handle, sum); i++)
        sum = (sum ^ bytes[i]) * 1099511628211u;
    return sum;
}

HC_API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr dptr)
{
    HC_ENTER(cuIpcGetMemHandle);
    HC_LOCKED();
    const struct hc_alloc *alloc = hc_memory_find(dptr);
    if (!out || !alloc || alloc->kind != HC_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    const struct hc_region *region = hc_memory_region_of(alloc->base);
    struct ipc_handle handle = {.magic = "hostcud",
                                .pid = getpid(),
                                .fd = region->fd,
                                .device = alloc->device,
                                .offset = alloc->base - region->base,
                                .size = alloc->size,
                                .id = alloc->id};
    handle.sum = sum_of(&handle);
    memset(out, 0, sizeof(*out));
    memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

static struct import *find_import(const struct ipc_handle *handle)
{
    struct import *import = imports;
    while (import && memcmp(&import->handle, handle, sizeof(*handle)))
        import = import->next;
    return import;
}

void *hc_ipc_map(int pid, int fd_there, uint64_t offset, uint64_t size, size_t *bytes)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd_there);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    size_t first = offset / HC_BLOCK_BYTES * HC_BLOCK_BYTES;
    size_t end = (offset + size + HC_BLOCK_BYTES - 1) / HC_BLOCK_BYTES;
    *bytes = end * HC_BLOCK_BYTES - first;
    char *raw = mmap(NULL, *bytes + HC_BLOCK_BYTES, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    uintptr_t start = ((uintptr_t)raw + HC_BLOCK_BYTES - 1) / HC_BLOCK_BYTES * HC_BLOCK_BYTES;
    munmap(raw, start - (uintptr_t)raw);
    munmap((char *)start + *bytes, (uintptr_t)raw + HC_BLOCK_BYTES - start);
    void *mapped = mmap((void *)start, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                        (off_t)first);
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static CUresult import_new(struct hc_ctx *ctx, const struct ipc_handle *handle, struct import **out)
{
    size_t bytes;
    char *mapped = hc_ipc_map(handle->pid, handle->fd, handle->offset, handle->size, &bytes);
    if (!mapped)
        return CUDA_ERROR_MAP_FAILED;
    struct import *import = calloc(1, sizeof(*import));
    struct hc_alloc *alloc = calloc(1, sizeof(*alloc));
    if (!import || !alloc) {
        free(import);
        free(alloc);
        munmap(mapped, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *alloc = (struct hc_alloc){.base = (uintptr_t)mapped + handle->offset % HC_BLOCK_BYTES,
                               .size = handle->size,
                               .reserved_bytes = bytes,
                               .kind = HC_IMPORTED,
                               .device = handle->device};
    hc_memory_note(alloc, ctx->owner);
    *import = (struct import){.handle = *handle, .alloc = alloc, .next = imports};
    imports = import;
    *out = import;
    return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *out, const CUipcMemHandle *raw, unsigned flags)
{
    HC_LOCKED();
    struct ipc_handle handle;
    struct hc_ctx *ctx;
    CUresult result = hc_ctx_current(&ctx);
    if (result)
        return result;
    if (!out || (flags & ~(unsigned)CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&handle, raw, sizeof(handle));
    if (memcmp(handle.magic, "hostcud", 8) || handle.sum != sum_of(&handle))
        return CUDA_ERROR_INVALID_HANDLE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    for (size_t i = sizeof(handle); i < sizeof(*raw); i++) {
        if (raw->reserved[i])
            return CUDA_ERROR_INVALID_HANDLE;
    }
    struct import *import = find_import(&handle);
    if (!import)
        result = import_new(ctx, &handle, &import);
    if (result)
        return result;
    import->count++;
    *out = import->alloc->base;
    return CUDA_SUCCESS;
}

HC_API CUresult cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags)
{
    HC_ENTER(cuIpcOpenMemHandle);
    return open_handle(dptr, &handle, flags);
}

HC_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags)
{
    HC_ENTER(cuIpcOpenMemHandle_v2);
    return open_handle(dptr, &handle, flags);
}

/* Takes an import off the list and unmaps it. */
static void close_import(struct import **link)
{
    struct import *import = *link;
    *link = import->next;
    hc_memory_release(import->alloc, HC_RACE_FREE);
    free(import);
}

void hc_ipc_close_all(const struct hc_ctx *ctx)
{
    for (struct import **link = &imports; *link;) {
        if ((*link)->alloc->ctx == ctx)
            close_import(link);
        else
            link = &(*link)->next;
    }
}

static struct import **find_opened(CUdeviceptr dptr)
{
    struct import **link = &imports;
    while (*link && (*link)->alloc->base != dptr)
        link = &(*link)->next;
    return link;
}

HC_API CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    HC_ENTER(cuIpcCloseMemHandle);
    HC_LOCKED();
    struct import *import = *find_opened(dptr);
    if (!import)
        return CUDA_ERROR_INVALID_VALUE;
    if (--import->count)
        return CUDA_SUCCESS;
    hc_stream_wait_all(import->alloc->ctx);
    struct import **link = find_opened(dptr);
    if (*link && !(*link)->count) /* nobody opened it again, or closed it, meanwhile */
        close_import(link);
    return CUDA_SUCCESS;
}
