/* SPDX-License-Identifier: Apache-2.0 */
/* A driver that records advice and prefetches and answers how much memory is free. */
#pragma once

#include "unit.h"

#include "driver/driver.h"
#include "fake_leaf.h"

#include <string.h>

#define PLACING_CONTEXT ((CUcontext)(uintptr_t)0x1000)
#define PLACING_STREAM  ((CUstream)(uintptr_t)0x2000)

enum { PLACED_MAX = 64, PLACING_DEVICE = 3, PREFETCH = 99 };

static const struct rs_environment placing_environment = {.device = PLACING_DEVICE,
                                                          .context = PLACING_CONTEXT};

struct placed {
    int what; /* CU_MEM_ADVISE_... or PREFETCH */
    CUdeviceptr address;
    size_t bytes;
    int where; /* CU_DEVICE_CPU: the host */
};

static struct {
    struct placed calls[PLACED_MAX];
    size_t count, old_calls, stream_count;
    size_t free_bytes;
    CUresult answer;
    CUstreamCaptureMode mode;
    CUcontext current;
    void (*on_memory_info)(void); /* called once, inside the next cuMemGetInfo */
} placing;

static inline CUresult placing_note(int what, CUdeviceptr address, size_t bytes, int where)
{
    assert_true(placing.count < PLACED_MAX);
    assert_int_equal(placing.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_ptr_equal(placing.current, PLACING_CONTEXT);
    placing.calls[placing.count++] = (struct placed){what, address, bytes, where};
    return placing.answer;
}

static inline int placing_where(CUmemLocation location)
{
    return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
}

static inline CUresult placing_advise(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                      CUmemLocation location)
{
    return placing_note((int)advice, address, bytes, placing_where(location));
}

static inline CUresult placing_advise_old(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                                          CUdevice device)
{
    placing.old_calls++;
    return placing_note((int)advice, address, bytes, device);
}

static inline CUresult placing_prefetch(CUdeviceptr address, size_t bytes, CUmemLocation location,
                                        unsigned flags, CUstream stream)
{
    assert_int_equal(flags, 0);
    assert_ptr_equal(stream, PLACING_STREAM);
    return placing_note(PREFETCH, address, bytes, placing_where(location));
}

static inline CUresult placing_prefetch_old(CUdeviceptr address, size_t bytes, CUdevice device,
                                            CUstream stream)
{
    assert_ptr_equal(stream, PLACING_STREAM);
    placing.old_calls++;
    return placing_note(PREFETCH, address, bytes, device);
}

static inline CUresult placing_current(CUcontext *context)
{
    *context = placing.current;
    return CUDA_SUCCESS;
}

static inline CUresult placing_push(CUcontext context)
{
    placing.current = context;
    return CUDA_SUCCESS;
}

static inline CUresult placing_pop(CUcontext *context)
{
    *context = placing.current;
    placing.current = NULL;
    return CUDA_SUCCESS;
}

static inline CUresult placing_exchange(CUstreamCaptureMode *mode)
{
    CUstreamCaptureMode before = placing.mode;

    placing.mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static inline CUresult placing_stream_create(CUstream *stream, unsigned flags)
{
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    placing.stream_count++;
    *stream = PLACING_STREAM;
    return CUDA_SUCCESS;
}

static inline CUresult placing_memory_info(size_t *free_bytes, size_t *total_bytes)
{
    void (*call)(void) = placing.on_memory_info;

    assert_ptr_equal(placing.current, PLACING_CONTEXT);
    *free_bytes = placing.free_bytes;
    *total_bytes = (size_t)80 << 30;
    placing.on_memory_info = NULL;
    if (call)
        call();
    return CUDA_SUCCESS;
}

static inline void placing_start(bool is_old)
{
    memset(&placing, 0, sizeof(placing));
    rs_driver = (struct rs_driver){
        .cuCtxGetCurrent = placing_current,
        .cuCtxPushCurrent_v2 = placing_push,
        .cuCtxPopCurrent_v2 = placing_pop,
        .cuThreadExchangeStreamCaptureMode = placing_exchange,
        .cuStreamCreate = placing_stream_create,
        .cuMemGetInfo_v2 = placing_memory_info,
        .cuMemAdvise = placing_advise_old,
        .cuMemPrefetchAsync = placing_prefetch_old,
        .cuMemAdvise_v2 = is_old ? NULL : placing_advise,
        .cuMemPrefetchAsync_v2 = is_old ? NULL : placing_prefetch,
    };
}

/* Returns a fake leaf that counts as a leaf of `memory`. */
static inline struct fake_leaf *placing_leaf(enum rs_memory memory)
{
    static struct rs_mr_descriptor descriptors[RS_MEMORIES];
    struct fake_leaf *leaf = fake_leaf_create((size_t)80 << 30);

    descriptors[memory] = fake_leaf_descriptor;
    descriptors[memory].memory = memory;
    leaf->base.descriptor = &descriptors[memory];
    leaf->base.memories = 1u << memory;
    return leaf;
}

static inline void assert_placed(size_t index, int what, CUdeviceptr address, size_t bytes,
                                 int where)
{
    assert_true(index < placing.count);
    assert_int_equal(placing.calls[index].what, what);
    assert_int_equal(placing.calls[index].address, address);
    assert_int_equal(placing.calls[index].bytes, bytes);
    assert_int_equal(placing.calls[index].where, where);
}
