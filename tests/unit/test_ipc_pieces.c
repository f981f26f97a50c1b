/* SPDX-License-Identifier: Apache-2.0 */
/* A block of mapped memory in pieces: what the exporter tells about it, and what the importer maps,
 * with each call of the driver failing in turn. */
#include "unit.h"

#include "descriptors.h"
#include "driver/driver.h"
#include "ipc/pieces.h"
#include "ipc/transfer.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum {
    PIECES = 3,
    PIECE = 2 << 20,
    HANDLE = 77,
    DEVICE = 1,
    FAILURE = CUDA_ERROR_ECC_UNCORRECTABLE
};

static const CUdeviceptr base = (CUdeviceptr)1 << 32;

/* ---- the driver ---- */

static unsigned failing, calls; /* the call that fails, from 1 on; 0: none */
static size_t mapped_bytes, reserved_bytes;
static unsigned handles, accessible; /* handles that are held; pieces that the device may use */
static unsigned odd_piece;           /* the piece that is smaller than the others; PIECES: none */

static CUresult step(void)
{
    return ++calls == failing ? (CUresult)FAILURE : CUDA_SUCCESS;
}

static CUresult get_range(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
    unsigned piece = (unsigned)((address - base) / PIECE);

    if (address < base || piece >= PIECES)
        return CUDA_ERROR_NOT_FOUND;
    *start = base + (CUdeviceptr)piece * PIECE;
    *bytes = piece == odd_piece ? PIECE / 2 : PIECE;
    return step();
}

static CUresult retain(CUmemGenericAllocationHandle *handle, void *address)
{
    CUresult result = step();

    (void)address;
    *handle = HANDLE;
    handles += result == CUDA_SUCCESS;
    return result;
}

static CUresult import(CUmemGenericAllocationHandle *handle, void *descriptor,
                       CUmemAllocationHandleType type)
{
    assert_true(fcntl((int)(intptr_t)descriptor, F_GETFD) >= 0);
    assert_int_equal(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    return retain(handle, NULL);
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    assert_int_equal(handle, HANDLE);
    assert_true(handles > 0);
    handles--;
    return CUDA_SUCCESS;
}

static CUresult export(void *descriptor, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags)
{
    int fd;

    (void)flags;
    assert_int_equal(handle, HANDLE);
    assert_int_equal(type, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (step() != CUDA_SUCCESS)
        return (CUresult)FAILURE;
    fd = open("/dev/null", O_RDONLY);
    memcpy(descriptor, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wish,
                        unsigned long long flags)
{
    (void)alignment;
    (void)wish;
    (void)flags;
    if (step() != CUDA_SUCCESS)
        return (CUresult)FAILURE;
    *address = base;
    reserved_bytes = bytes;
    return CUDA_SUCCESS;
}

static CUresult unreserve(CUdeviceptr address, size_t bytes)
{
    assert_int_equal(address, base);
    assert_int_equal(bytes, reserved_bytes);
    assert_int_equal(mapped_bytes, 0);
    reserved_bytes = 0;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    (void)flags;
    assert_int_equal(address, base + mapped_bytes);
    assert_int_equal(handle, HANDLE);
    assert_int_equal(offset, 0);
    if (step() != CUDA_SUCCESS)
        return (CUresult)FAILURE;
    mapped_bytes += bytes;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
    assert_int_equal(address, base);
    assert_int_equal(bytes, mapped_bytes);
    if (step() != CUDA_SUCCESS)
        return (CUresult)FAILURE;
    mapped_bytes = 0;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device)
{
    *device = DEVICE;
    return step();
}

static CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                           size_t count)
{
    assert_int_equal(address, base);
    assert_int_equal(bytes, mapped_bytes);
    assert_int_equal(count, 1);
    assert_int_equal(access->location.id, DEVICE);
    accessible = step() == CUDA_SUCCESS ? (unsigned)(bytes / PIECE) : 0;
    return accessible ? CUDA_SUCCESS : (CUresult)FAILURE;
}

static const struct rs_driver whole = {
    .cuMemGetAddressRange_v2 = get_range,
    .cuMemRetainAllocationHandle = retain,
    .cuMemRelease = release,
    .cuMemExportToShareableHandle = export,
    .cuMemImportFromShareableHandle = import,
    .cuMemAddressReserve = reserve,
    .cuMemAddressFree = unreserve,
    .cuMemMap = map,
    .cuMemUnmap = unmap,
    .cuMemSetAccess = set_access,
    .cuCtxGetDevice = get_device,
};

/* ---- the exporter's answers ---- */

CUresult __wrap_rs_transfer_next(struct rs_transfer *transfer, uint32_t piece, int *fd);
void __wrap_rs_transfer_end(struct rs_transfer *transfer);

static unsigned transfers;

CUresult __wrap_rs_transfer_next(struct rs_transfer *transfer, uint32_t piece, int *fd)
{
    assert_int_equal(transfer->connection, piece == 0 ? -1 : (int)piece);
    *fd = -1;
    if (step() != CUDA_SUCCESS)
        return (CUresult)FAILURE;
    transfer->connection = (int)piece + 1;
    *fd = open("/dev/null", O_RDONLY);
    return CUDA_SUCCESS;
}

void __wrap_rs_transfer_end(struct rs_transfer *transfer)
{
    (void)transfer;
    transfers++;
}

/* ---- */

static int begin(void **state)
{
    (void)state;
    rs_driver = whole;
    failing = calls = handles = accessible = transfers = 0;
    mapped_bytes = reserved_bytes = 0;
    odd_piece = PIECES;
    return 0;
}

FIXTURE(begin, NULL);

static const struct rs_ipc_slot slot = {.pieces = PIECES,
                                        .allocation_bytes = (uint64_t)PIECES * PIECE};

static CUresult map_slot(CUdeviceptr *at)
{
    static const struct rs_ipc_handle handle;

    calls = 0;
    return rs_pieces_map(NULL, &handle, &slot, at);
}

TEST(a_block_in_pieces_is_described_by_its_pieces)
{
    unsigned before = open_descriptors();
    struct rs_ipc_slot place;

    assert_int_equal(rs_pieces_find(base + PIECE / 2, PIECE, &place),
                     CUDA_SUCCESS); /* in two of them */
    assert_int_equal(place.pieces, 2);
    assert_int_equal(place.offset_bytes, PIECE / 2);
    assert_int_equal(place.size_bytes, PIECE);
    assert_int_equal(place.allocation_bytes, 2 * PIECE);
    assert_int_equal(handles, 0);
    assert_int_equal(open_descriptors(), before);
}

TEST(a_block_whose_pieces_differ_is_not_shared)
{
    struct rs_ipc_slot place;

    odd_piece = 1;
    assert_int_equal(rs_pieces_find(base, 2 * PIECE, &place), CUDA_ERROR_NOT_SUPPORTED);
    odd_piece = PIECES;
    assert_int_equal(rs_pieces_find(base, 2 * PIECE, &place), CUDA_SUCCESS);
    /* beyond the end */
    assert_int_equal(rs_pieces_find(base, (size_t)(PIECES + 1) * PIECE, &place),
                     CUDA_ERROR_NOT_FOUND);
    assert_int_equal(rs_pieces_find(base - 1, 1, &place), CUDA_ERROR_NOT_FOUND);
}

static CUresult get_empty_range(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
    *start = address;
    *bytes = 0;
    return CUDA_SUCCESS;
}

static CUresult get_range_below(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
    *start = address - PIECE;
    *bytes = PIECE;
    return CUDA_SUCCESS;
}

TEST(an_answer_that_is_not_about_the_address_is_no_piece)
{
    struct rs_ipc_slot place;

    rs_driver.cuMemGetAddressRange_v2 = get_empty_range;
    assert_int_equal(rs_pieces_find(base, PIECE, &place), CUDA_ERROR_NOT_SUPPORTED);
    rs_driver.cuMemGetAddressRange_v2 = get_range_below;
    assert_int_equal(rs_pieces_find(base, PIECE, &place), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(calls, 0); /* no handle was asked for */
}

TEST(a_block_is_not_shared_where_a_call_fails)
{
    unsigned before = open_descriptors();
    struct rs_ipc_slot place;
    CUresult result;

    for (failing = 1; calls = 0, (result = rs_pieces_find(base, 2 * PIECE, &place)) != CUDA_SUCCESS;
         failing++) {
        assert_int_equal(result, FAILURE);
        assert_int_equal(calls, failing);
        assert_int_equal(handles, 0);
        assert_int_equal(open_descriptors(), before);
    }
    assert_int_equal(failing, 6); /* a range, a handle, its export, and two ranges */
}

TEST(an_exported_descriptor_is_closed_by_exec)
{
    int fd;

    assert_int_equal(rs_piece_export(base, &fd), CUDA_SUCCESS);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
}

TEST(all_pieces_are_mapped_and_accessible)
{
    unsigned before = open_descriptors();
    CUdeviceptr at = 0;

    assert_int_equal(map_slot(&at), CUDA_SUCCESS);
    assert_int_equal(at, base);
    assert_int_equal(mapped_bytes, PIECES * PIECE);
    assert_int_equal(accessible, PIECES);
    assert_int_equal(handles, 0); /* the mappings keep the memory */
    assert_int_equal(transfers, 1);
    assert_int_equal(open_descriptors(), before);
    assert_int_equal(rs_pieces_unmap(at, (size_t)PIECES * PIECE), CUDA_SUCCESS);
    assert_int_equal(mapped_bytes + reserved_bytes, 0);
}

TEST(where_a_call_fails_nothing_is_left_mapped)
{
    unsigned before = open_descriptors(), ended = 0;
    CUdeviceptr at;
    CUresult result;

    for (failing = 1; (result = map_slot(&at)) != CUDA_SUCCESS; failing++) {
        assert_int_equal(result, FAILURE);
        assert_int_equal(mapped_bytes + reserved_bytes, 0);
        assert_int_equal(handles, 0);
        assert_int_equal(open_descriptors(), before);
        assert_int_equal(transfers, failing == 1 ? 0 : ++ended);
    }
    /* The reservation; a descriptor, an import and a mapping for each; the device, its access. */
    assert_int_equal(failing, 1 + 3 * PIECES + 2 + 1);
}

TEST(addresses_that_are_still_mapped_stay_reserved)
{
    CUdeviceptr at;

    assert_int_equal(map_slot(&at), CUDA_SUCCESS);
    failing = calls + 1;
    assert_int_equal(rs_pieces_unmap(at, (size_t)PIECES * PIECE), FAILURE);
    assert_int_equal(reserved_bytes, PIECES * PIECE);
}

TEST(a_slot_of_unequal_pieces_is_refused)
{
    const struct rs_ipc_slot odd = {.pieces = PIECES, .allocation_bytes = PIECES * PIECE + 1};
    static const struct rs_ipc_handle handle;
    CUdeviceptr at;

    assert_int_equal(rs_pieces_map(NULL, &handle, &odd, &at), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(calls, 0);
}

/* ---- drivers that lack a function ---- */

#define LACK(member)        (rs_driver = whole, rs_driver.member = NULL)
#define MAP_WITHOUT(member) (LACK(member), map_slot(&(CUdeviceptr){0}))

TEST(a_driver_without_mapped_memory_maps_nothing)
{
    assert_int_equal(MAP_WITHOUT(cuMemAddressReserve), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(MAP_WITHOUT(cuMemAddressFree), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(MAP_WITHOUT(cuMemMap), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(MAP_WITHOUT(cuMemUnmap), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(MAP_WITHOUT(cuMemSetAccess), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(MAP_WITHOUT(cuMemImportFromShareableHandle), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(MAP_WITHOUT(cuMemRelease), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(calls, 0);
}

TEST(a_driver_without_handles_shares_nothing)
{
    struct rs_ipc_slot place;

    LACK(cuMemRelease);
    assert_int_equal(rs_pieces_find(base, PIECE, &place), CUDA_ERROR_NOT_SUPPORTED);
    LACK(cuMemRetainAllocationHandle);
    assert_int_equal(rs_pieces_find(base, PIECE, &place), CUDA_ERROR_NOT_SUPPORTED);
    LACK(cuMemExportToShareableHandle);
    assert_int_equal(rs_pieces_find(base, PIECE, &place), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(handles, 0);
}
