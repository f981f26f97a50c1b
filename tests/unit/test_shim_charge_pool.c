/* SPDX-License-Identifier: Apache-2.0 */
/* How a block goes back when its pool grew past the limit by one unit of the driver. */
#include "unit.h"

#include "charge/charge.h"
#include "driver/driver.h"

#define STREAM ((CUstream)(uintptr_t)0x2000)

enum { ADDRESS = 0x3000 };

static struct {
    CUstreamCaptureMode mode;
    CUstream stream;
    unsigned frees;
} driver;

static CUresult fake_exchange_mode(CUstreamCaptureMode *other)
{
    CUstreamCaptureMode before = driver.mode;

    driver.mode = *other;
    *other = before;
    return CUDA_SUCCESS;
}

static CUresult fake_free_async(CUdeviceptr address, CUstream stream)
{
    assert_int_equal(address, ADDRESS);
    assert_int_equal(driver.mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    driver.stream = stream;
    driver.frees++;
    return CUDA_SUCCESS;
}

/* A capture that another thread began since the allocation would be spoilt otherwise, and the free
 * refused. */
TEST(an_allocation_is_undone_whatever_captures)
{
    struct rs_charge charge = {.turn = 0};

    driver.mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    rs_driver.cuThreadExchangeStreamCaptureMode = fake_exchange_mode;
    rs_driver.cuMemFreeAsync = fake_free_async;
    (void)rs_charge_async_undo(&charge, ADDRESS, STREAM);
    assert_ptr_equal(driver.stream, STREAM);
    (void)rs_charge_async_undo(&charge, ADDRESS, CU_STREAM_PER_THREAD);
    assert_ptr_equal(driver.stream, CU_STREAM_PER_THREAD);
    (void)rs_charge_async_undo(&charge, ADDRESS, NULL);
    assert_null(driver.stream);
    assert_int_equal(driver.frees, 3);
    assert_int_equal(driver.mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}
