/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of pools between processes: what is imported once, and when it goes back. */
#include "unit.h"

#include "driver/driver.h"
#include "ipc/pool.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* ---- the driver ---- */

#define POOL  ((CUmemoryPool)(uintptr_t)0x9000)
#define BASE  ((CUdeviceptr)0x40000)
#define BYTES ((size_t)0x10000)

static CUresult refuse_pool, refuse_access, refuse_pointer, refuse_export;
static int pools, pointers, imports, exports;
static unsigned access_bits;
static bool pool_outlives_pointers; /* seen at the pool's end */

static CUresult fake_capture_mode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_SUCCESS;
}

static CUresult fake_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    assert_int_equal(attribute, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
    *(CUmemoryPool *)data = address >= BASE ? POOL : NULL;
    return CUDA_SUCCESS;
}

static CUresult fake_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    (void)address;
    *base = BASE;
    *bytes = BYTES;
    return CUDA_SUCCESS;
}

static CUresult fake_export(void *out, CUmemoryPool pool, CUmemAllocationHandleType type,
                            unsigned long long flags)
{
    assert_ptr_equal(pool, POOL);
    assert_int_equal(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    assert_int_equal(flags, 0);
    if (refuse_export)
        return refuse_export;
    exports++;
    *(int *)out = open("/dev/null", O_RDONLY);
    return CUDA_SUCCESS;
}

static CUresult fake_export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    assert_true(exports > 0);
    assert_int_equal(address, BASE);
    memset(data, 7, sizeof(*data));
    return CUDA_SUCCESS;
}

static CUresult fake_import(CUmemoryPool *pool, void *handle, CUmemAllocationHandleType type,
                            unsigned long long flags)
{
    assert_int_equal((uintptr_t)handle, 5);
    assert_int_equal(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    assert_int_equal(flags, 0);
    if (refuse_pool)
        return refuse_pool;
    pools++;
    imports++;
    access_bits = 0;
    *pool = POOL;
    return CUDA_SUCCESS;
}

static CUresult fake_get_access(CUmemAccess_flags *flags, CUmemoryPool pool,
                                CUmemLocation *location)
{
    (void)pool;
    *flags = access_bits & 1u << location->id ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                              : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

static CUresult fake_set_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    (void)pool;
    assert_int_equal(count, 1);
    assert_int_equal(access->flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_false(access_bits & 1u << access->location.id);
    if (refuse_access)
        return refuse_access;
    access_bits |= 1u << access->location.id;
    return CUDA_SUCCESS;
}

static CUresult fake_import_pointer(CUdeviceptr *address, CUmemoryPool pool,
                                    CUmemPoolPtrExportData *data)
{
    assert_ptr_equal(pool, POOL);
    if (refuse_pointer)
        return refuse_pointer;
    pointers++;
    *address = BASE + data->reserved[0] * BYTES;
    return CUDA_SUCCESS;
}

static CUresult fake_free(CUdeviceptr address)
{
    assert_true(address >= BASE);
    pointers--;
    return CUDA_SUCCESS;
}

static CUresult fake_destroy(CUmemoryPool pool)
{
    assert_ptr_equal(pool, POOL);
    pools--;
    pool_outlives_pointers = pointers == 0;
    return CUDA_SUCCESS;
}

static int start(void **state)
{
    (void)state;
    rs_driver.cuThreadExchangeStreamCaptureMode = fake_capture_mode;
    rs_driver.cuPointerGetAttribute = fake_attribute;
    rs_driver.cuMemGetAddressRange_v2 = fake_range;
    rs_driver.cuMemPoolExportToShareableHandle = fake_export;
    rs_driver.cuMemPoolExportPointer = fake_export_pointer;
    rs_driver.cuMemPoolImportFromShareableHandle = fake_import;
    rs_driver.cuMemPoolGetAccess = fake_get_access;
    rs_driver.cuMemPoolSetAccess = fake_set_access;
    rs_driver.cuMemPoolImportPointer = fake_import_pointer;
    rs_driver.cuMemPoolDestroy = fake_destroy;
    rs_driver.cuMemFree_v2 = fake_free;
    refuse_pool = refuse_access = refuse_pointer = refuse_export = CUDA_SUCCESS;
    pools = pointers = imports = exports = 0;
    return 0;
}

FIXTURE(start, NULL);

/* ---- the tests ---- */

static const struct rs_ipc_handle exporter = {.nonce = {1}}, other_exporter = {.nonce = {2}};

static struct rs_ipc_slot slot_of(uint64_t pool, unsigned char number)
{
    return (struct rs_ipc_slot){.pool = pool, .pooled = {.reserved = {number}}};
}

static struct rs_pooled *use(const struct rs_ipc_handle *handle, struct rs_ipc_slot slot,
                             CUdevice device)
{
    struct rs_pooled *pooled = NULL;
    CUresult result = rs_pooled_use(handle, &slot, device, -1, &pooled);

    if (result == CUDA_ERROR_NOT_READY)
        result = rs_pooled_use(handle, &slot, device, 5, &pooled);
    assert_int_equal(result, CUDA_SUCCESS);
    assert_int_equal(rs_pooled_address(pooled), BASE + slot.pooled.reserved[0] * BYTES);
    return pooled;
}

static void leave(struct rs_pooled *pooled)
{
    assert_int_equal(rs_pooled_leave(pooled), CUDA_SUCCESS);
}

TEST(an_allocation_is_imported_once_and_freed_by_the_last)
{
    struct rs_pooled *first = use(&exporter, slot_of(1, 3), 0);
    struct rs_pooled *again = use(&exporter, slot_of(1, 3), 1);
    struct rs_pooled *second = use(&exporter, slot_of(1, 4), 0);

    assert_ptr_equal(first, again);
    assert_int_equal(imports, 1);
    assert_int_equal(pointers, 2);
    assert_int_equal(access_bits, 3);
    leave(first);
    assert_int_equal(pointers, 2);
    leave(again);
    assert_int_equal(pointers, 1);
    assert_int_equal(pools, 1);
    leave(second);
    assert_int_equal(pointers, 0);
    assert_int_equal(pools, 0);
    assert_true(pool_outlives_pointers);
    leave(use(&exporter, slot_of(1, 3), 0));
    assert_int_equal(imports, 2);
    assert_int_equal(pools, 0);
}

TEST(pools_of_processes_and_numbers_are_not_mixed_up)
{
    struct rs_pooled *one = use(&exporter, slot_of(1, 3), 0);
    struct rs_pooled *two = use(&exporter, slot_of(2, 3), 0);
    struct rs_pooled *three = use(&other_exporter, slot_of(1, 3), 0);

    assert_int_equal(imports, 3);
    assert_int_equal(pointers, 3);
    leave(two);
    leave(one);
    leave(three);
    assert_int_equal(pools, 0);
}

static void refused(CUresult expected)
{
    struct rs_ipc_slot slot = slot_of(1, 9);
    struct rs_pooled *pooled = NULL;

    assert_int_equal(rs_pooled_use(&exporter, &slot, 1, 5, &pooled), expected);
}

TEST(a_refusal_leaves_nothing)
{
    struct rs_pooled *kept;

    for (int has_one = 0; has_one < 2; has_one++) {
        kept = has_one ? use(&exporter, slot_of(1, 3), 0) : NULL;
        refuse_pool = CUDA_ERROR_OPERATING_SYSTEM;
        if (!has_one)
            refused(CUDA_ERROR_OPERATING_SYSTEM);
        refuse_pool = CUDA_SUCCESS;
        refuse_access = CUDA_ERROR_INVALID_DEVICE;
        refused(CUDA_ERROR_INVALID_DEVICE);
        refuse_access = CUDA_SUCCESS;
        refuse_pointer = CUDA_ERROR_INVALID_VALUE;
        refused(CUDA_ERROR_INVALID_VALUE);
        refuse_pointer = CUDA_SUCCESS;
        assert_int_equal(pools, has_one);
        assert_int_equal(pointers, has_one);
        if (kept)
            leave(kept);
    }
    rs_driver.cuMemPoolImportPointer = NULL;
    refused(CUDA_ERROR_NOT_SUPPORTED);
}

TEST(a_pool_keeps_its_number_until_its_context_ends)
{
    CUcontext first = (CUcontext)(uintptr_t)0x100, second = (CUcontext)(uintptr_t)0x200;
    struct rs_pool_allocation a, b;

    assert_true(rs_pool_find(BASE + 512, first, &a));
    assert_true(rs_pool_find(BASE + 1024, first, &b));
    assert_int_equal(exports, 1);
    assert_true(a.pool != 0 && a.pool == b.pool);
    assert_int_equal(a.base, BASE);
    assert_int_equal(a.size_bytes, BYTES);
    assert_int_equal(a.data.reserved[63], 7);
    rs_pool_forget(second);
    assert_true(rs_pool_find(BASE, first, &b));
    assert_int_equal(a.pool, b.pool);
    rs_pool_forget(first);
    assert_true(rs_pool_find(BASE, first, &b));
    assert_int_not_equal(a.pool, b.pool);
    rs_pool_forget(first);
    refuse_export = CUDA_ERROR_INVALID_VALUE;
    assert_false(rs_pool_find(BASE, first, &b));
    assert_false(rs_pool_find(BASE - 1, first, &b)); /* of no pool */
}

TEST(a_descriptor_is_not_inherited)
{
    int fd = -1;

    assert_int_equal(rs_pool_export(BASE, &fd), CUDA_SUCCESS);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
    assert_int_equal(rs_pool_export(BASE - 1, &fd), CUDA_ERROR_INVALID_VALUE);
}
