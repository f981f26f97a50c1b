/* SPDX-License-Identifier: Apache-2.0 */
/* Entry points: pools that several processes share.
 *
 * None of this was seen on hardware.  cuda.h says: the pool must have been made for sharing; an
 * imported pool allocates nothing; an allocation is imported from its imported pool; importers
 * free theirs by cuMemFree or cuMemFreeAsync, each before the exporter frees its own.  NVIDIA's
 * sample streamOrderedAllocationIPC exports the pool before the pointers, and gives its device
 * access where the imported pool has none, which is so here for every device.  cuda.core says of
 * drivers that importing an allocation again gives the same address, which the first free unmaps
 * (NVIDIA's bug 5570902).
 *
 * A pool's descriptor is a file that tells where its process keeps the memory.  An importer locks
 * the byte of an allocation's number there, which shows a free that comes too early. */
#include "driver/call.h"
#include "driver/device.h"
#include "driver/ipc.h"
#include "driver/lock.h"
#include "driver/memory.h"
#include "driver/pool.h"
#include "driver/vmm.h"
#include "hostcuda.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOCKS_AT = 4096 };

struct pool_file {
    char magic[8];
    int32_t pid, region_fd, device, zero;
};

/* What CUmemPoolPtrExportData holds. */
struct exported {
    char magic[8];
    uint64_t pool, offset, size, id;
};

_Static_assert(sizeof(struct exported) <= sizeof(CUmemPoolPtrExportData), "there is room");

static unsigned early_frees;
static const char file_magic[8] = "hostpol", exported_magic[8] = "hostptr";

/* A number that no two pools' files have. */
static uint64_t number_of(const struct hc_pool *pool)
{
    struct stat status;
    return fstat(pool->shared_fd, &status) ? 0 : (uint64_t)status.st_ino;
}

bool hc_pool_share(struct hc_pool *pool)
{
    struct pool_file file = {.pid = getpid(),
                             .region_fd = hc_device_at(pool->device)->memory.fd,
                             .device = pool->device};
    int fd = hc_file_keep(-1, LOCKS_AT);
    if (fd < 0)
        return false;
    memcpy(file.magic, file_magic, sizeof(file.magic));
    pool->shared_fd = fd;
    return pwrite(fd, &file, sizeof(file), 0) == sizeof(file);
}

/* F_UNLCK, F_RDLCK; F_WRLCK asks. */
static bool lock_byte(const struct hc_pool *pool, unsigned long long id, short type)
{
    struct flock lock = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)(LOCKS_AT + id), .l_len = 1};
    if (type != F_WRLCK)
        return !fcntl(pool->shared_fd, F_OFD_SETLK, &lock);
    return !fcntl(pool->shared_fd, F_OFD_GETLK, &lock) && lock.l_type != F_UNLCK;
}

void hc_pool_check_freed(const struct hc_alloc *alloc)
{
    early_frees += lock_byte(alloc->pool, alloc->id, F_WRLCK);
}

HC_API unsigned hostcuda_early_frees(void)
{
    HC_LOCKED();
    return early_frees;
}

HC_API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle,
                                                 CUmemAllocationHandleType type,
                                                 unsigned long long flags)
{
    HC_ENTER(cuMemPoolExportToShareableHandle);
    HC_LOCKED();
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    if (result)
        return result;
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || pool->shared_fd < 0 ||
        pool->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    /* It takes a second descriptor for a moment.  Without the first, a pool that was not exported
     * before can never be (H200, driver 580). */
    int fd = dup(pool->shared_fd), other = fd >= 0 ? dup(pool->shared_fd) : -1;
    if (fd < 0 && !pool->is_exported)
        pool->is_unexportable = true;
    if (other >= 0)
        close(other);
    if (other < 0 || pool->is_unexportable) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    pool->is_exported = true;
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr dptr)
{
    HC_ENTER(cuMemPoolExportPointer);
    HC_LOCKED();
    const struct hc_alloc *alloc = hc_memory_find_base(dptr);
    if (!out || !alloc || alloc->kind != HC_ASYNC || alloc->is_freed || !alloc->pool ||
        !alloc->pool->is_exported)
        return CUDA_ERROR_INVALID_VALUE;
    struct exported exported = {.pool = number_of(alloc->pool),
                                .offset = alloc->base - hc_memory_region_of(alloc->base)->base,
                                .size = alloc->size,
                                .id = alloc->id};
    memcpy(exported.magic, exported_magic, sizeof(exported.magic));
    memset(out, 0, sizeof(*out));
    memcpy(out, &exported, sizeof(exported));
    return CUDA_SUCCESS;
}

static bool read_file(int fd, struct pool_file *file)
{
    return pread(fd, file, sizeof(*file), 0) == sizeof(*file) &&
           !memcmp(file->magic, file_magic, sizeof(file->magic)) && hc_device_at(file->device);
}

/* Opens the file anew, as the lock belongs to what was opened: neither the exporter's, nor lost
 * when the program closes the descriptor that it was sent. */
static int open_anew(int given)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", given);
    int fd = open(path, O_RDWR | O_CLOEXEC), kept = fd < 0 ? -1 : hc_file_keep(fd, 0);
    if (fd >= 0)
        close(fd);
    return kept;
}

HC_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *os_handle,
                                                   CUmemAllocationHandleType type,
                                                   unsigned long long flags)
{
    HC_ENTER(cuMemPoolImportFromShareableHandle);
    HC_LOCKED();
    struct pool_file file;
    int given = (int)(uintptr_t)os_handle;
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !read_file(given, &file))
        return CUDA_ERROR_INVALID_VALUE;
    int fd = open_anew(given);
    struct hc_pool *pool = fd < 0 ? NULL : hc_pool_new(file.device);
    if (!pool) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->is_imported = true;
    pool->shared_fd = fd;
    pool->access = 0;
    *out = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

static struct hc_alloc *find_imported(const struct hc_pool *pool, unsigned long long id)
{
    struct hc_alloc *alloc = pool->imported;
    while (alloc && alloc->exported_id != id)
        alloc = alloc->next_imported;
    return alloc;
}

static CUresult import(struct hc_pool *pool, const struct exported *exported, struct hc_alloc **out)
{
    struct pool_file file;
    size_t bytes;
    if (!read_file(pool->shared_fd, &file))
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_alloc *alloc = calloc(1, sizeof(*alloc));
    char *mapped =
        alloc ? hc_ipc_map(file.pid, file.region_fd, exported->offset, exported->size, &bytes)
              : NULL;
    if (!mapped) {
        free(alloc);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *alloc = (struct hc_alloc){.base = (uintptr_t)mapped + exported->offset % HC_BLOCK_BYTES,
                               .size = exported->size,
                               .reserved_bytes = bytes,
                               .kind = HC_IMPORTED,
                               .device = pool->device,
                               .pool = pool,
                               .exported_id = exported->id,
                               .next_imported = pool->imported};
    hc_memory_note(alloc, NULL);
    lock_byte(pool, exported->id, F_RDLCK);
    pool->imported = alloc;
    pool->used_bytes += bytes;
    *out = alloc;
    return CUDA_SUCCESS;
}

HC_API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool handle,
                                       CUmemPoolPtrExportData *data)
{
    HC_ENTER(cuMemPoolImportPointer);
    HC_LOCKED();
    struct exported exported;
    struct hc_pool *pool;
    CUresult result = hc_pool_of(handle, &pool);
    if (result)
        return result;
    if (!out || !data || !pool->is_imported)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&exported, data, sizeof(exported));
    if (memcmp(exported.magic, exported_magic, sizeof(exported.magic)) ||
        exported.pool != number_of(pool))
        return CUDA_ERROR_INVALID_VALUE;
    struct hc_alloc *alloc = find_imported(pool, exported.id);
    if (!alloc)
        result = import(pool, &exported, &alloc);
    if (!result)
        *out = alloc->base;
    return result;
}

void hc_pool_unimport(const struct hc_alloc *alloc)
{
    struct hc_alloc **link = &alloc->pool->imported;
    while (*link != alloc)
        link = &(*link)->next_imported;
    *link = alloc->next_imported;
    lock_byte(alloc->pool, alloc->exported_id, F_UNLCK);
}
