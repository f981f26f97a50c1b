/* SPDX-License-Identifier: Apache-2.0 */
/* When the driver is asked which context is a device's primary one. */
#include "unit.h"

#include "context/end.h"
#include "driver/driver.h"

enum { DEVICE = 0 };

static CUcontext primary = (CUcontext)(uintptr_t)0x1000, created = (CUcontext)(uintptr_t)0x2000;
static unsigned questions, references;

static CUresult get_device(CUdevice *device)
{
    *device = DEVICE;
    return CUDA_SUCCESS;
}

static CUresult get_state(CUdevice device, unsigned *flags, int *active)
{
    assert_int_equal(device, DEVICE);
    *flags = 0;
    *active = true;
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    assert_int_equal(device, DEVICE);
    questions++;
    references++;
    *context = primary;
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device)
{
    assert_int_equal(device, DEVICE);
    references--;
    return CUDA_SUCCESS;
}

/* A primary context may come back with another handle. */
TEST(the_driver_is_asked_for_a_primary_context_once_until_it_ends)
{
    struct rs_ending ending;

    rs_driver.cuCtxGetDevice = get_device;
    rs_driver.cuDevicePrimaryCtxGetState = get_state;
    rs_driver.cuDevicePrimaryCtxRetain = retain;
    rs_driver.cuDevicePrimaryCtxRelease_v2 = release;
    rs_context_learn_current(created);
    assert_ptr_equal(rs_driver_known_primary(DEVICE), primary);
    rs_context_learn_current(created);
    rs_context_learn_current(primary);
    assert_int_equal(questions, 1);
    for (int is_sure = 0; is_sure < 2; is_sure++) { /* a release of the last reference; a reset */
        rs_ending_begin(&ending, NULL, DEVICE, is_sure);
        primary = (CUcontext)(uintptr_t)(0x3000 + is_sure);
        rs_ending_finish(&ending, true);
        rs_context_learn_current(created);
        assert_ptr_equal(rs_driver_known_primary(DEVICE), primary);
        rs_context_learn_current(created);
        assert_int_equal(questions, 2 + is_sure);
    }
    assert_int_equal(references, 0);
}
