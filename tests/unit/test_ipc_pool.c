/* SPDX-License-Identifier: Apache-2.0 */
/* Driver's pools between processes: what is exported once and what is imported once, with each call
 * of the driver failing in turn. */
#include "unit.h"

#include "descriptors.h"
#include "driver/driver.h"
#include "ipc/pool.h"
#include "ipc/transfer.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum {
    POOLS = 3,
    BYTES = 2 << 20,
    OFFSET = 512,
    DEVICE = 1,
    FAILURE = CUDA_ERROR_ECC_UNCORRECTABLE
};

static const CUdeviceptr base = (CUdeviceptr)1 << 32;

/* ---- the driver ---- */

static unsigned failing, calls; /* the call that fails, from 1 on; 0: none */
static unsigned exported_pools, imported_pools, destroyed_pools, imported_pointers, freed_pointers;
static char pools[POOLS], contexts[2];
static CUmemoryPool pool_of_address;

static CUmemoryPool pool(unsigned number)
{
    return (CUmemoryPool)(void *)&pools[number];
}

static CUcontext context(unsigned number)
{
    return (CUcontext)(void *)&contexts[number];
}

static CUresult step(void)
{
    return ++calls == failing ? (CUresult)FAILURE : CUDA_SUCCESS;
}

static CUresult get_attribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    (void)address;
    assert_int_equal(attribute, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
    memcpy(data, &pool_of_address, sizeof(pool_of_address));
    return step();
}

static CUresult get_range(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
    assert_int_equal(address, base + OFFSET);
    *start = base;
    *bytes = BYTES;
    return step();
}

static CUresult export_pool(void *descriptor, CUmemoryPool handle, CUmemAllocationHandleType type,
                            unsigned long long flags)
{
    int fd;

    (void)flags;
    assert_ptr_equal(handle, pool_of_address);
    assert_int_equal(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (step() != CUDA_SUCCESS)
        return (CUresult)FAILURE;
    fd = open("/dev/null", O_RDONLY);
    memcpy(descriptor, &fd, sizeof(fd));
    exported_pools++;
    return CUDA_SUCCESS;
}

static CUresult export_pointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    assert_int_equal(address, base);
    memset(data, 'p', sizeof(*data));
    return step();
}

static CUresult import_pool(CUmemoryPool *handle, void *descriptor, CUmemAllocationHandleType type,
                            unsigned long long flags)
{
    (void)type;
    (void)flags;
    assert_true(fcntl((int)(intptr_t)descriptor, F_GETFD) >= 0);
    if (step() != CUDA_SUCCESS)
        return (CUresult)FAILURE;
    *handle = pool(imported_pools++);
    return CUDA_SUCCESS;
}

static CUresult set_access(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
    (void)handle;
    assert_int_equal(count, 1);
    assert_int_equal(access->location.id, DEVICE);
    assert_int_equal(access->flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return step();
}

static CUresult import_pointer(CUdeviceptr *address, CUmemoryPool handle,
                               CUmemPoolPtrExportData *data)
{
    (void)handle;
    assert_int_equal(data->reserved[0], 'p');
    if (step() != CUDA_SUCCESS)
        return (CUresult)FAILURE;
    *address = base + (CUdeviceptr)imported_pointers++ * BYTES;
    return CUDA_SUCCESS;
}

static CUresult destroy_pool(CUmemoryPool handle)
{
    (void)handle;
    destroyed_pools++;
    return CUDA_SUCCESS;
}

static CUresult free_pointer(CUdeviceptr address)
{
    (void)address;
    freed_pointers++;
    return step();
}

static CUresult get_device(CUdevice *device)
{
    *device = DEVICE;
    return step();
}

static const struct rs_driver whole = {
    .cuPointerGetAttribute = get_attribute,
    .cuMemGetAddressRange_v2 = get_range,
    .cuMemPoolExportToShareableHandle = export_pool,
    .cuMemPoolExportPointer = export_pointer,
    .cuMemPoolImportFromShareableHandle = import_pool,
    .cuMemPoolImportPointer = import_pointer,
    .cuMemPoolSetAccess = set_access,
    .cuMemPoolDestroy = destroy_pool,
    .cuMemFree_v2 = free_pointer,
    .cuCtxGetDevice = get_device,
};

/* ---- the exporter's answers ---- */

CUresult __wrap_rs_transfer_next(struct rs_transfer *transfer, uint32_t piece, int *fd);
void __wrap_rs_transfer_end(struct rs_transfer *transfer);

CUresult __wrap_rs_transfer_next(struct rs_transfer *transfer, uint32_t piece, int *fd)
{
    assert_int_equal(transfer->connection, -1);
    assert_int_equal(piece, 0);
    *fd = step() == CUDA_SUCCESS ? open("/dev/null", O_RDONLY) : -1;
    return *fd < 0 ? (CUresult)FAILURE : CUDA_SUCCESS;
}

void __wrap_rs_transfer_end(struct rs_transfer *transfer)
{
    (void)transfer;
}

/* ---- */

static int begin(void **state)
{
    (void)state;
    rs_driver = whole;
    failing = calls = 0;
    exported_pools = imported_pools = destroyed_pools = imported_pointers = freed_pointers = 0;
    pool_of_address = pool(0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++)
        rs_pool_forget(context(i));
    return 0;
}

FIXTURE(begin, end);

/* ---- the exporter ---- */

static bool find(struct rs_ipc_slot *place, unsigned of)
{
    const struct rs_block_view block = {.address = base + OFFSET, .context = context(of)};

    calls = 0;
    return rs_pool_find(&block, place) == CUDA_SUCCESS;
}

TEST(a_pool_is_exported_once)
{
    struct rs_ipc_slot first, second, of_other_pool, of_other_context;

    assert_true(find(&first, 0));
    assert_true(find(&second, 0));
    assert_int_equal(first.pool, second.pool);
    assert_int_equal(first.offset_bytes, OFFSET);
    assert_int_equal(first.allocation_bytes, BYTES);
    assert_int_equal(first.pooled.reserved[0], 'p');
    assert_int_equal(exported_pools, 1);
    pool_of_address = pool(1);
    assert_true(find(&of_other_pool, 0));
    assert_int_not_equal(of_other_pool.pool, first.pool);
    pool_of_address = pool(0);
    assert_true(find(&of_other_context, 1)); /* another pool that came to have this handle */
    assert_int_not_equal(of_other_context.pool, first.pool);
    assert_int_equal(exported_pools, 3);
    assert_true(find(&second, 0));
    assert_int_equal(second.pool, first.pool);
}

TEST(each_request_gets_a_descriptor_of_its_own)
{
    struct rs_ipc_slot one, other;
    int first, second;

    assert_true(find(&one, 0));
    pool_of_address = pool(1);
    assert_true(find(&other, 0));
    first = rs_pool_descriptor(one.pool);
    second = rs_pool_descriptor(one.pool);
    assert_true(first >= 0 && second >= 0 && first != second);
    assert_int_equal(fcntl(first, F_GETFD), FD_CLOEXEC);
    assert_int_equal(rs_pool_descriptor(one.pool + other.pool), -1); /* which there is not */
    close(first);
    close(second);
}

TEST(a_contexts_pools_are_forgotten_with_it)
{
    unsigned before = open_descriptors();
    struct rs_ipc_slot ended, other, again;
    int fd;

    assert_true(find(&other, 1));
    assert_true(find(&ended, 0));
    rs_pool_forget(context(0));
    assert_int_equal(rs_pool_descriptor(ended.pool), -1);
    fd = rs_pool_descriptor(other.pool);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(open_descriptors(), before + 1);
    assert_true(find(&again, 0)); /* a later context with its handle, and a pool with its pool's */
    assert_int_not_equal(again.pool, ended.pool);
}

TEST(where_a_call_fails_the_block_is_not_shared)
{
    unsigned before = open_descriptors();
    struct rs_ipc_slot place;

    for (failing = 1; !find(&place, 0); failing++) {
        assert_int_equal(calls, failing);
        rs_pool_forget(context(0));
        assert_int_equal(open_descriptors(), before);
    }
    assert_int_equal(failing, 5); /* the pool, its export, the allocation, its export */
}

TEST(memory_of_no_pool_is_not_shared)
{
    struct rs_ipc_slot place;

    pool_of_address = NULL;
    assert_false(find(&place, 0));
    assert_int_equal(calls, 1);
}

/* ---- the importer ---- */

static const struct rs_ipc_handle one_process = {.nonce = "one"},
                                  other_process = {.nonce = "other"};

static CUresult import(const struct rs_ipc_handle *handle, uint64_t number,
                       struct rs_imported_pool **pool, CUdeviceptr *address)
{
    struct rs_ipc_slot slot = {.pool = number};

    memset(&slot.pooled, 'p', sizeof(slot.pooled));
    calls = 0;
    return rs_pool_import(NULL, handle, &slot, pool, address);
}

TEST(a_pool_is_imported_once_and_destroyed_with_its_last_allocation)
{
    unsigned before = open_descriptors();
    struct rs_imported_pool *first, *second, *of_other_number, *of_other_process;
    CUdeviceptr at[4];

    assert_int_equal(import(&one_process, 1, &first, &at[0]), CUDA_SUCCESS);
    assert_int_equal(import(&one_process, 1, &second, &at[1]), CUDA_SUCCESS);
    assert_ptr_equal(first, second);
    assert_int_equal(imported_pools, 1);
    assert_int_equal(import(&one_process, 2, &of_other_number, &at[2]), CUDA_SUCCESS);
    assert_int_equal(import(&other_process, 1, &of_other_process, &at[3]), CUDA_SUCCESS);
    assert_int_equal(imported_pools, 3);
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(rs_pool_leave(first, at[0]), CUDA_SUCCESS);
    assert_int_equal(destroyed_pools, 0);
    assert_int_equal(rs_pool_leave(second, at[1]), CUDA_SUCCESS);
    assert_int_equal(destroyed_pools, 1);
    assert_int_equal(rs_pool_leave(of_other_number, at[2]), CUDA_SUCCESS);
    assert_int_equal(rs_pool_leave(of_other_process, at[3]), CUDA_SUCCESS);
    assert_int_equal(destroyed_pools, 3);
    assert_int_equal(freed_pointers, 4);
}

TEST(where_a_call_fails_nothing_is_left_imported)
{
    unsigned before = open_descriptors();
    struct rs_imported_pool *imported;
    CUdeviceptr at;
    CUresult result;

    for (failing = 1; (result = import(&one_process, 1, &imported, &at)) != CUDA_SUCCESS;
         failing++) {
        assert_int_equal(result, FAILURE);
        assert_int_equal(destroyed_pools, imported_pools);
        assert_int_equal(open_descriptors(), before);
    }
    assert_int_equal(failing, 6); /* the descriptor, the pool, the device, access, the pointer */
    failing = 0;
    assert_int_equal(rs_pool_leave(imported, at), CUDA_SUCCESS);
    assert_int_equal(destroyed_pools, imported_pools);
}

TEST(a_pool_in_use_outlives_an_import_that_fails)
{
    struct rs_imported_pool *used, *other;
    CUdeviceptr at, nowhere;

    assert_int_equal(import(&one_process, 1, &used, &at), CUDA_SUCCESS);
    failing = 3; /* the pointer */
    assert_int_equal(import(&one_process, 1, &other, &nowhere), FAILURE);
    assert_int_equal(destroyed_pools, 0);
    failing = calls + 1;
    assert_int_equal(rs_pool_leave(used, at), FAILURE); /* is told, and the pool goes */
    assert_int_equal(destroyed_pools, 1);
}

/* ---- drivers that lack a function ---- */

#define LACK(member) (rs_driver = whole, rs_driver.member = NULL)
#define IMPORT_WITHOUT(member)                                                                     \
    (LACK(member), import(&one_process, 1, &(struct rs_imported_pool *){NULL}, &(CUdeviceptr){0}))

TEST(a_driver_without_pools_imports_nothing)
{
    assert_int_equal(IMPORT_WITHOUT(cuMemPoolImportFromShareableHandle), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(IMPORT_WITHOUT(cuMemPoolImportPointer), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(IMPORT_WITHOUT(cuMemPoolSetAccess), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(IMPORT_WITHOUT(cuMemPoolDestroy), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(IMPORT_WITHOUT(cuMemFree_v2), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(calls, 0);
}

TEST(a_driver_that_exports_no_pools_shares_nothing)
{
    struct rs_ipc_slot place;

    LACK(cuPointerGetAttribute);
    assert_false(find(&place, 0));
    LACK(cuMemPoolExportToShareableHandle);
    assert_false(find(&place, 0));
    LACK(cuMemPoolExportPointer);
    assert_false(find(&place, 0));
    assert_int_equal(calls, 0);
}
