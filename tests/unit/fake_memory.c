/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_memory.h"

#include "unit.h"

#include "driver/driver.h"
#include "fake_leaf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>

#define OWN_STREAM ((CUstream)(uintptr_t)0x5000)

_Atomic unsigned fake_memory_wrong_calls, fake_memory_waits;
_Atomic int fake_memory_answer;

static void *host_buffer; /* of one resource; NULL: none */
static __thread CUcontext current;
static __thread CUstreamCaptureMode mode;

unsigned char *fake_memory_at(CUdeviceptr address)
{
    assert_in_range(address, FAKE_LEAF_FIRST_ADDRESS,
                    FAKE_LEAF_FIRST_ADDRESS + FAKE_MEMORY_BYTES - 1);
    return (unsigned char *)(uintptr_t)address;
}

static CUresult note_call(CUstream stream)
{
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED || current != fake_environment.context ||
        stream != OWN_STREAM)
        atomic_fetch_add(&fake_memory_wrong_calls, 1);
    return (CUresult)atomic_load(&fake_memory_answer);
}

static CUresult fake_get_current(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult fake_push(CUcontext context)
{
    assert_null(current);
    current = context;
    return CUDA_SUCCESS;
}

static CUresult fake_pop(CUcontext *context)
{
    *context = current;
    current = NULL;
    return CUDA_SUCCESS;
}

static CUresult fake_exchange_mode(CUstreamCaptureMode *other)
{
    CUstreamCaptureMode before = mode;

    mode = *other;
    *other = before;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_create(CUstream *stream, unsigned flags)
{
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    *stream = OWN_STREAM;
    return CUDA_SUCCESS;
}

static CUresult fake_stream_destroy(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult fake_synchronize(CUstream stream)
{
    CUresult result = note_call(stream);

    atomic_fetch_add(&fake_memory_waits, 1);
    return result;
}

static CUresult fake_fill8(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    CUresult result = note_call(stream);

    if (result == CUDA_SUCCESS)
        memset(fake_memory_at(to), value, count);
    return result;
}

static CUresult fake_fill32(CUdeviceptr to, unsigned value, size_t count, CUstream stream)
{
    CUresult result = note_call(stream);

    assert_int_equal(to % sizeof(value), 0); /* the driver insists */
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
        memcpy(fake_memory_at(to + i * sizeof(value)), &value, sizeof(value));
    return result;
}

static CUresult fake_host_alloc(void **memory, size_t bytes, unsigned flags)
{
    (void)flags;
    assert_null(host_buffer);
    *memory = host_buffer = malloc(bytes);
    return *memory ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult fake_free_host(void *memory)
{
    assert_ptr_equal(memory, host_buffer);
    free(memory);
    host_buffer = NULL;
    return CUDA_SUCCESS;
}

void fake_memory_end_context(void)
{
    free(host_buffer);
    host_buffer = NULL;
}

static CUresult fake_query(CUstream stream)
{
    (void)stream;
    return atomic_load(&fake_memory_answer);
}

static CUresult fake_copy(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    CUresult result = note_call(stream);

    if (result == CUDA_SUCCESS)
        memcpy(to, fake_memory_at(from), bytes);
    return result;
}

void fake_memory_begin(void)
{
    static bool is_mapped;
    void *at = (void *)(uintptr_t)FAKE_LEAF_FIRST_ADDRESS;

    if (!is_mapped)
        assert_ptr_equal(mmap(at, FAKE_MEMORY_BYTES, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1,
                              0),
                         at);
    else
        assert_int_equal(madvise(at, FAKE_MEMORY_BYTES, MADV_DONTNEED), 0);
    is_mapped = true;
    atomic_store(&fake_memory_wrong_calls, 0);
    atomic_store(&fake_memory_waits, 0);
    atomic_store(&fake_memory_answer, CUDA_SUCCESS);
    rs_driver.cuCtxGetCurrent = fake_get_current;
    rs_driver.cuCtxPushCurrent_v2 = fake_push;
    rs_driver.cuCtxPopCurrent_v2 = fake_pop;
    rs_driver.cuThreadExchangeStreamCaptureMode = fake_exchange_mode;
    rs_driver.cuStreamCreate = fake_stream_create;
    rs_driver.cuStreamDestroy_v2 = fake_stream_destroy;
    rs_driver.cuStreamQuery = fake_query;
    rs_driver.cuMemHostAlloc = fake_host_alloc;
    rs_driver.cuMemFreeHost = fake_free_host;
    rs_driver.cuStreamSynchronize = fake_synchronize;
    rs_driver.cuMemsetD8Async = fake_fill8;
    rs_driver.cuMemsetD32Async = fake_fill32;
    rs_driver.cuMemcpyDtoHAsync_v2 = fake_copy;
}
