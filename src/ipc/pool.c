/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/pool.h"

#include "base/check.h"
#include "base/file.h"
#include "base/lock.h"
#include "driver/driver.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* A driver's pool of this process that was exported. */
struct exported_pool {
    CUmemoryPool handle;
    CUcontext context;
    uint64_t number;
    struct exported_pool *next;
};

/* Another process's pool. */
struct imported_pool {
    unsigned char nonce[RS_IPC_NONCE_BYTES]; /* of its process's table */
    uint64_t number;
    CUmemoryPool handle;
    unsigned uses; /* the number of imports from it */
    struct imported_pool *next;
};

struct rs_pooled {
    struct imported_pool *pool;
    CUmemPoolPtrExportData data;
    CUdeviceptr address;
    unsigned uses;
    struct rs_pooled *next;
};

static struct rs_mutex lock =
    RS_MUTEX_INIT(RS_RANK_TABLE); /* protects the lists; no driver call under it waits for work */
static struct exported_pool *exported;
static uint64_t last_number;
static struct imported_pool *pools;
static struct rs_pooled *imports;

/* ---- the exporter ---- */

static bool can_export(void)
{
    return rs_driver.cuPointerGetAttribute && rs_driver.cuMemPoolExportToShareableHandle &&
           rs_driver.cuMemPoolExportPointer;
}

static CUmemoryPool pool_of(CUdeviceptr address)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    CUmemoryPool pool = NULL;

    if (rs_driver.cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) !=
        CUDA_SUCCESS)
        pool = NULL;
    rs_capture_restore(mode);
    return pool;
}

CUresult rs_pool_export(CUdeviceptr address, int *fd)
{
    CUmemoryPool pool = can_export() ? pool_of(address) : NULL;
    CUstreamCaptureMode mode;
    CUresult result;

    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    mode = rs_capture_relax();
    result = rs_driver.cuMemPoolExportToShareableHandle(
        fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    rs_capture_restore(mode);
    if (result == CUDA_SUCCESS)
        (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
    return result;
}

static uint64_t number_of(CUmemoryPool handle, CUcontext context)
{
    const struct exported_pool *pool = exported;

    RS_ASSERT_HELD(&lock);
    while (pool && (pool->handle != handle || pool->context != context))
        pool = pool->next;
    return pool ? pool->number : 0;
}

static uint64_t enter_exported(CUmemoryPool handle, CUcontext context)
{
    struct exported_pool *pool;
    uint64_t number;

    rs_mutex_lock(&lock);
    number = number_of(handle, context);
    if (!number && (pool = malloc(sizeof(*pool)))) {
        number = ++last_number;
        *pool = (struct exported_pool){handle, context, number, exported};
        exported = pool;
    }
    rs_mutex_unlock(&lock);
    return number;
}

/* Returns the pool's number; 0: it cannot be shared.  The first time it is exported once, to see
 * that the driver does, and since a pointer can be exported only of a pool that has been
 * (cuMemPoolExportPointer: "from an already shared memory pool"). */
static uint64_t share_pool(CUdeviceptr address, CUmemoryPool handle, CUcontext context)
{
    uint64_t number;
    int fd;

    rs_mutex_lock(&lock);
    number = number_of(handle, context);
    rs_mutex_unlock(&lock);
    if (number || rs_pool_export(address, &fd) != CUDA_SUCCESS)
        return number;
    rs_file_close(fd);
    return enter_exported(handle, context);
}

bool rs_pool_find(CUdeviceptr address, CUcontext context, struct rs_pool_allocation *allocation)
{
    CUmemoryPool pool = can_export() ? pool_of(address) : NULL;
    CUstreamCaptureMode mode;
    CUresult result;

    if (!pool || !(allocation->pool = share_pool(address, pool, context)))
        return false;
    mode = rs_capture_relax();
    result = rs_driver.cuMemGetAddressRange_v2(&allocation->base, &allocation->size_bytes, address);
    if (result == CUDA_SUCCESS)
        result = rs_driver.cuMemPoolExportPointer(&allocation->data, allocation->base);
    rs_capture_restore(mode);
    return result == CUDA_SUCCESS;
}

void rs_pool_forget(CUcontext context)
{
    struct exported_pool **link = &exported, *pool;

    rs_mutex_lock(&lock);
    while ((pool = *link)) {
        if (pool->context != context) {
            link = &pool->next;
            continue;
        }
        *link = pool->next;
        free(pool);
    }
    rs_mutex_unlock(&lock);
}

/* ---- the importer ---- */

static bool can_import(void)
{
    return rs_driver.cuMemPoolImportFromShareableHandle && rs_driver.cuMemPoolImportPointer &&
           rs_driver.cuMemPoolGetAccess && rs_driver.cuMemPoolSetAccess &&
           rs_driver.cuMemPoolDestroy && rs_driver.cuMemFree_v2;
}

/* Gives the device access where it has none, as NVIDIA's sample streamOrderedAllocationIPC does. */
static CUresult allow(CUmemoryPool pool, CUdevice device)
{
    CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;

    if (rs_driver.cuMemPoolGetAccess(&flags, pool, &access.location) == CUDA_SUCCESS &&
        flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_SUCCESS;
    return rs_driver.cuMemPoolSetAccess(pool, &access, 1);
}

static struct imported_pool *find_pool(const struct rs_ipc_handle *handle, uint64_t number)
{
    struct imported_pool *pool = pools;

    RS_ASSERT_HELD(&lock);
    while (pool &&
           (pool->number != number || memcmp(pool->nonce, handle->nonce, sizeof(pool->nonce)) != 0))
        pool = pool->next;
    return pool;
}

static struct imported_pool *import_pool(const struct rs_ipc_handle *handle, uint64_t number,
                                         int fd, CUresult *result)
{
    struct imported_pool *pool = calloc(1, sizeof(*pool));

    RS_ASSERT_HELD(&lock);
    *result = !pool ? CUDA_ERROR_OUT_OF_MEMORY
                    : rs_driver.cuMemPoolImportFromShareableHandle(
                          &pool->handle, (void *)(uintptr_t)fd,
                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (*result != CUDA_SUCCESS) {
        free(pool);
        return NULL;
    }
    memcpy(pool->nonce, handle->nonce, sizeof(pool->nonce));
    pool->number = number;
    pool->next = pools;
    pools = pool;
    return pool;
}

static void drop_pool(struct imported_pool *pool)
{
    struct imported_pool **link = &pools;

    RS_ASSERT_HELD(&lock);
    RS_ASSERT(pool->uses == 0);
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    (void)rs_driver.cuMemPoolDestroy(pool->handle);
    free(pool);
}

static struct rs_pooled *find_import(const struct imported_pool *pool,
                                     const CUmemPoolPtrExportData *data)
{
    struct rs_pooled *pooled = imports;

    RS_ASSERT_HELD(&lock);
    while (pooled &&
           (pooled->pool != pool || memcmp(&pooled->data, data, sizeof(pooled->data)) != 0))
        pooled = pooled->next;
    return pooled;
}

static struct rs_pooled *import(struct imported_pool *pool, const CUmemPoolPtrExportData *data,
                                CUresult *result)
{
    struct rs_pooled *pooled = calloc(1, sizeof(*pooled));

    RS_ASSERT_HELD(&lock);
    if (!pooled) {
        *result = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    pooled->pool = pool;
    pooled->data = *data;
    *result = rs_driver.cuMemPoolImportPointer(&pooled->address, pool->handle, &pooled->data);
    if (*result != CUDA_SUCCESS) {
        free(pooled);
        return NULL;
    }
    pool->uses++;
    pooled->next = imports;
    imports = pooled;
    return pooled;
}

/* Imports from a pool that is imported. */
static CUresult use_import(struct imported_pool *pool, const struct rs_ipc_slot *slot,
                           CUdevice device, struct rs_pooled **out)
{
    CUresult result = allow(pool->handle, device);
    struct rs_pooled *pooled = find_import(pool, &slot->pooled);

    if (result == CUDA_SUCCESS && !pooled)
        pooled = import(pool, &slot->pooled, &result);
    if (result == CUDA_SUCCESS)
        pooled->uses++;
    else if (pool->uses == 0)
        drop_pool(pool);
    *out = pooled;
    return result;
}

CUresult rs_pooled_use(const struct rs_ipc_handle *handle, const struct rs_ipc_slot *slot,
                       CUdevice device, int fd, struct rs_pooled **pooled)
{
    CUresult result = CUDA_ERROR_NOT_READY;
    struct imported_pool *pool;
    CUstreamCaptureMode mode;

    if (!can_import())
        return CUDA_ERROR_NOT_SUPPORTED;
    mode = rs_capture_relax();
    rs_mutex_lock(&lock);
    pool = find_pool(handle, slot->pool);
    if (!pool && fd >= 0)
        pool = import_pool(handle, slot->pool, fd, &result);
    if (pool)
        result = use_import(pool, slot, device, pooled);
    rs_mutex_unlock(&lock);
    rs_capture_restore(mode);
    return result;
}

CUdeviceptr rs_pooled_address(const struct rs_pooled *pooled)
{
    return pooled->address;
}

/* cuMemFree is complete when it returns, as cuMemPoolImportPointer asks: the exporter may free its
 * own next.  Of a process's own pool it does not wait (MEASURED.md); of an imported one that was
 * not asked, but the caller has waited for the work before. */
CUresult rs_pooled_leave(struct rs_pooled *pooled)
{
    CUstreamCaptureMode mode = rs_capture_relax();
    struct rs_pooled **link = &imports;
    CUresult result = CUDA_SUCCESS;

    rs_mutex_lock(&lock);
    RS_ASSERT(pooled->uses > 0);
    if (--pooled->uses == 0) {
        while (*link != pooled)
            link = &(*link)->next;
        *link = pooled->next;
        result = rs_driver.cuMemFree_v2(pooled->address);
        if (--pooled->pool->uses == 0)
            drop_pool(pooled->pool);
        free(pooled);
    }
    rs_mutex_unlock(&lock);
    rs_capture_restore(mode);
    return result;
}
