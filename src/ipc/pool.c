/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/pool.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "driver/driver.h"
#include "ipc/transfer.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

/* ---- the exporter ---- */

/* A driver's pool of this process that other processes may import. */
struct shared_pool {
    CUmemoryPool handle;
    CUcontext context;
    uint64_t number; /* never used twice */
    struct rs_kept_descriptor file;
    struct shared_pool *next;
};

static struct rs_mutex lock = RS_MUTEX_INIT(RS_RANK_TABLE); /* protects the next two */
RS_RESET_IN_CHILD(ipc_pool, lock);
static struct shared_pool *shared;
static uint64_t last_number;

/* True when this process has two descriptors left.  cuMemPoolExportToShareableHandle takes as many,
 * and a pool for whose first export it had none can never be exported (an H200, driver 580). */
static bool has_descriptors(void)
{
    int fds[2] = {eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC)};

    for (size_t i = 0; i < RS_ARRAY_LENGTH(fds); i++)
        if (fds[i] >= 0)
            rs_file_close(fds[i]);
    return fds[0] >= 0 && fds[1] >= 0;
}

/* Exports the pool to other processes, and enters it in `shared`. */
static CUresult share(CUmemoryPool handle, CUcontext context, struct shared_pool **out)
{
    struct shared_pool *pool = malloc(sizeof(*pool));
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    int fd;

    RS_ASSERT_HELD(&lock);
    if (pool && has_descriptors())
        result = rs_driver.cuMemPoolExportToShareableHandle(
            &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (pool && result == CUDA_SUCCESS) {
        *pool = (struct shared_pool){
            .handle = handle, .context = context, .number = ++last_number, .next = shared};
        if (rs_descriptor_keep(&pool->file, fd)) {
            shared = *out = pool;
            return CUDA_SUCCESS;
        }
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(pool);
    return rs_ipc_export_result(result);
}

static CUresult find_number(CUmemoryPool handle, CUcontext context, uint64_t *number)
{
    RS_MUTEX_GUARD(&lock);
    struct shared_pool *pool = shared;
    CUresult result = CUDA_SUCCESS;

    while (pool && (pool->handle != handle || pool->context != context))
        pool = pool->next;
    if (!pool)
        result = share(handle, context, &pool);
    if (result == CUDA_SUCCESS)
        *number = pool->number;
    RS_ASSERT(result != CUDA_SUCCESS || *number > 0);
    return result;
}

CUresult rs_pool_find(const struct rs_block_view *block, struct rs_ipc_slot *place)
{
    CUmemoryPool pool = NULL;
    CUdeviceptr base;
    size_t bytes;
    CUresult result;

    if (!rs_driver.cuPointerGetAttribute || !rs_driver.cuMemPoolExportToShareableHandle ||
        !rs_driver.cuMemPoolExportPointer)
        return CUDA_ERROR_NOT_SUPPORTED;
    RS_RELAXED_GUARD();
    result =
        rs_driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block->address);
    if (result == CUDA_SUCCESS && !pool)
        return CUDA_ERROR_NOT_SUPPORTED;
    *place = (struct rs_ipc_slot){.pool = 0};
    /* The pool must be exported before a pointer into it. */
    if (result == CUDA_SUCCESS)
        result = find_number(pool, block->context, &place->pool);
    if (result == CUDA_SUCCESS)
        result = rs_driver.cuMemGetAddressRange_v2(&base, &bytes, block->address);
    if (result == CUDA_SUCCESS)
        result = rs_driver.cuMemPoolExportPointer(&place->pooled, base);
    if (result != CUDA_SUCCESS)
        return rs_ipc_export_result(result);
    place->offset_bytes = block->address - base;
    place->allocation_bytes = bytes;
    return CUDA_SUCCESS;
}

int rs_pool_descriptor(uint64_t number)
{
    RS_MUTEX_GUARD(&lock);
    const struct shared_pool *pool = shared;

    while (pool && pool->number != number)
        pool = pool->next;
    return pool && rs_descriptor_is_kept(&pool->file) ? fcntl(pool->file.fd, F_DUPFD_CLOEXEC, 0)
                                                      : -1;
}

void rs_pool_forget(CUcontext context)
{
    RS_MUTEX_GUARD(&lock);
    struct shared_pool **link = &shared, *pool;

    while ((pool = *link)) {
        if (pool->context != context) {
            link = &pool->next;
            continue;
        }
        *link = pool->next;
        rs_descriptor_close(&pool->file);
        free(pool);
    }
}

/* ---- the importer ---- */

struct rs_imported_pool {
    unsigned char nonce[RS_IPC_NONCE_BYTES]; /* that of the exporter's table */
    uint64_t number;
    CUmemoryPool handle;
    unsigned uses; /* the number of imported allocations */
    struct rs_imported_pool *next;
};

static struct rs_imported_pool *imported;

static struct rs_imported_pool *find_imported(const struct rs_ipc_handle *handle, uint64_t number)
{
    struct rs_imported_pool *pool = imported;

    while (pool &&
           (pool->number != number || memcmp(pool->nonce, handle->nonce, sizeof(pool->nonce)) != 0))
        pool = pool->next;
    return pool;
}

/* Imports a pool.  Returns NULL with the error in *result when that fails. */
static struct rs_imported_pool *import_pool(const struct rs_exporter *exporter,
                                            const struct rs_ipc_handle *handle, uint64_t number,
                                            CUresult *result)
{
    struct rs_transfer transfer = {.exporter = exporter, .handle = handle, .connection = -1};
    struct rs_imported_pool *pool = calloc(1, sizeof(*pool));
    int fd = -1;

    *result = pool ? rs_transfer_next(&transfer, 0, &fd) : CUDA_ERROR_OUT_OF_MEMORY;
    rs_transfer_end(&transfer);
    if (*result == CUDA_SUCCESS) {
        *result = rs_driver.cuMemPoolImportFromShareableHandle(
            &pool->handle, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        rs_file_close(fd);
    }
    if (*result != CUDA_SUCCESS) {
        free(pool);
        return NULL;
    }
    memcpy(pool->nonce, handle->nonce, sizeof(pool->nonce));
    pool->number = number;
    pool->next = imported;
    return imported = pool;
}

static void drop_if_unused(struct rs_imported_pool *pool)
{
    struct rs_imported_pool **link = &imported;

    if (pool->uses > 0)
        return;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    (void)rs_driver.cuMemPoolDestroy(pool->handle);
    free(pool);
}

static CUresult import_pointer(const struct rs_imported_pool *pool, const struct rs_ipc_slot *slot,
                               CUdeviceptr *address)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUmemPoolPtrExportData data = slot->pooled;
    CUresult result = rs_driver.cuCtxGetDevice(&access.location.id);

    if (result == CUDA_SUCCESS)
        result = rs_driver.cuMemPoolSetAccess(pool->handle, &access, 1);
    return result == CUDA_SUCCESS ? rs_driver.cuMemPoolImportPointer(address, pool->handle, &data)
                                  : result;
}

CUresult rs_pool_import(const struct rs_exporter *exporter, const struct rs_ipc_handle *handle,
                        const struct rs_ipc_slot *slot, struct rs_imported_pool **pool,
                        CUdeviceptr *address)
{
    CUresult result;

    if (!rs_driver.cuMemPoolImportFromShareableHandle || !rs_driver.cuMemPoolImportPointer ||
        !rs_driver.cuMemPoolSetAccess || !rs_driver.cuMemPoolDestroy || !rs_driver.cuMemFree_v2)
        return CUDA_ERROR_NOT_SUPPORTED;
    RS_RELAXED_GUARD();
    *pool = find_imported(handle, slot->pool);
    if (!*pool)
        *pool = import_pool(exporter, handle, slot->pool, &result);
    if (!*pool)
        return result;
    result = import_pointer(*pool, slot, address);
    if (result == CUDA_SUCCESS)
        (*pool)->uses++;
    else
        drop_if_unused(*pool);
    return result;
}

CUresult rs_pool_leave(struct rs_imported_pool *pool, CUdeviceptr address)
{
    RS_RELAXED_GUARD();
    CUresult result = rs_driver.cuMemFree_v2(address);

    RS_ASSERT(pool->uses > 0);
    pool->uses--;
    drop_if_unused(pool);
    return result;
}
