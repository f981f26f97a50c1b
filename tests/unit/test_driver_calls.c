/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own calls of drivers that have a function in another version, or not at all. */
#include "unit.h"

#include "driver/driver.h"

#include <string.h>

enum { ADDRESS = 0x10000, BYTES = 4096, FAILURE = CUDA_ERROR_ECC_UNCORRECTABLE };

static char one, other;
static CUcontext current;
static unsigned pushes, pops;
static CUresult answer; /* of every call that has one */

#define CONTEXT ((CUcontext)(void *)&one)
#define ANOTHER ((CUcontext)(void *)&other)
#define STREAM  ((CUstream)(void *)&other)

/* ---- contexts ---- */

static CUresult get_current(CUcontext *context)
{
    *context = current;
    return answer;
}

static CUresult push(CUcontext context)
{
    current = context;
    pushes++;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
    *context = current;
    current = ANOTHER;
    pops++;
    return CUDA_SUCCESS;
}

static int active;
static unsigned retained;

static CUresult get_state(CUdevice device, unsigned *flags, int *is_active)
{
    (void)device;
    *flags = 0;
    *is_active = active;
    return answer;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    (void)device;
    *context = CONTEXT;
    retained++;
    return answer;
}

static CUresult release(CUdevice device)
{
    (void)device;
    retained--;
    return CUDA_SUCCESS;
}

/* ---- placement ---- */

static const char *called;
static int device_asked; /* -2: the host */

static CUresult advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device)
{
    assert_int_equal(address, ADDRESS);
    assert_int_equal(bytes, BYTES);
    assert_int_equal(advice, CU_MEM_ADVISE_SET_READ_MOSTLY);
    called = "advise";
    device_asked = device == CU_DEVICE_CPU ? -2 : device;
    return answer;
}

static CUresult advise_2(CUdeviceptr address, size_t bytes, CUmem_advise advice,
                         CUmemLocation location)
{
    (void)advise(address, bytes, advice,
                 location.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : location.id);
    called = "advise_2";
    return answer;
}

static CUresult prefetch(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream)
{
    assert_ptr_equal(stream, STREAM);
    (void)advise(address, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, device);
    called = "prefetch";
    return answer;
}

static CUresult prefetch_2(CUdeviceptr address, size_t bytes, CUmemLocation location,
                           unsigned flags, CUstream stream)
{
    assert_int_equal(flags, 0);
    assert_ptr_equal(stream, STREAM);
    (void)advise_2(address, bytes, CU_MEM_ADVISE_SET_READ_MOSTLY, location);
    called = "prefetch_2";
    return answer;
}

static int begin(void **state)
{
    (void)state;
    rs_driver = (struct rs_driver){
        .cuCtxGetCurrent = get_current, .cuCtxPushCurrent_v2 = push, .cuCtxPopCurrent_v2 = pop};
    current = ANOTHER;
    answer = CUDA_SUCCESS;
    called = NULL;
    pushes = pops = retained = 0;
    return 0;
}

FIXTURE(begin, NULL);

static CUresult advise_where(int where)
{
    return rs_placement_advise(CONTEXT, ADDRESS, BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, where);
}

static CUresult prefetch_where(int where)
{
    return rs_placement_prefetch(CONTEXT, ADDRESS, BYTES, where, STREAM);
}

static void is_called(CUresult result, const char *name, int device)
{
    assert_int_equal(result, CUDA_SUCCESS);
    assert_string_equal(called, name);
    assert_int_equal(device_asked, device);
    assert_ptr_equal(current, ANOTHER);
    assert_int_equal(pushes, pops);
}

TEST(a_place_is_named_as_the_driver_takes_it)
{
    rs_driver.cuMemAdvise = advise;
    rs_driver.cuMemPrefetchAsync = prefetch;
    is_called(advise_where(3), "advise", 3);
    is_called(advise_where(RS_PLACEMENT_HOST), "advise", -2);
    is_called(prefetch_where(3), "prefetch", 3);
    is_called(prefetch_where(RS_PLACEMENT_HOST), "prefetch", -2);
    rs_driver.cuMemAdvise_v2 = advise_2;
    rs_driver.cuMemPrefetchAsync_v2 = prefetch_2;
    is_called(advise_where(3), "advise_2", 3);
    is_called(advise_where(RS_PLACEMENT_HOST), "advise_2", -2);
    is_called(prefetch_where(3), "prefetch_2", 3);
    is_called(prefetch_where(RS_PLACEMENT_HOST), "prefetch_2", -2);
    assert_int_equal(pushes, 8);
}

TEST(a_driver_without_placement_says_so)
{
    assert_int_equal(advise_where(0), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(prefetch_where(0), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(pushes, pops);
}

TEST(nothing_is_placed_where_the_context_cannot_be_entered)
{
    rs_driver.cuMemAdvise = advise;
    rs_driver.cuMemPrefetchAsync = prefetch;
    answer = (CUresult)FAILURE;
    assert_int_equal(advise_where(0), FAILURE);
    assert_int_equal(prefetch_where(0), FAILURE);
    assert_null(called);
    assert_int_equal(pushes + pops, 0);
}

/* ---- primary contexts ---- */

TEST(a_primary_is_asked_for_only_while_it_is_active)
{
    active = 1;
    assert_false(rs_driver_is_primary_active(0)); /* a driver without primary contexts */
    rs_driver.cuDevicePrimaryCtxGetState = get_state;
    assert_false(rs_driver_is_primary_active(0));
    assert_null(rs_driver_learn_primary(0));
    rs_driver.cuDevicePrimaryCtxRelease_v2 = release;
    rs_driver.cuDevicePrimaryCtxRetain = retain;
    active = 0;
    assert_null(rs_driver_active_primary(0));
    assert_null(rs_driver_known_primary(0));
    active = 1;
    answer = (CUresult)FAILURE;
    assert_null(rs_driver_active_primary(0));
    answer = CUDA_SUCCESS;
    assert_ptr_equal(rs_driver_active_primary(0), CONTEXT);
    assert_ptr_equal(rs_driver_known_primary(0), CONTEXT);
    active = 0;
    assert_null(rs_driver_active_primary(0)); /* it is known, and inactive */
    assert_ptr_equal(rs_driver_known_primary(0), CONTEXT);
    assert_int_equal(retained, 0);
}

TEST(a_device_beyond_those_that_are_noted_has_a_primary_all_the_same)
{
    rs_driver.cuDevicePrimaryCtxGetState = get_state;
    rs_driver.cuDevicePrimaryCtxRelease_v2 = release;
    rs_driver.cuDevicePrimaryCtxRetain = retain;
    active = 1;
    assert_ptr_equal(rs_driver_active_primary(64), CONTEXT);
    assert_null(rs_driver_known_primary(64));
    assert_null(rs_driver_known_primary(-1));
}

/* ---- names of errors ---- */

static const char *name_given;

static CUresult get_name(CUresult result, const char **name)
{
    assert_int_equal(result, CUDA_ERROR_OUT_OF_MEMORY);
    *name = name_given;
    return answer;
}

static const char *name(void)
{
    static char buffer[32];

    return rs_driver_error_name(CUDA_ERROR_OUT_OF_MEMORY, buffer);
}

TEST(an_error_without_a_name_is_told_by_its_number)
{
    assert_string_equal(name(), "error 2");
    rs_driver.cuGetErrorName = get_name;
    assert_string_equal(name(), "error 2");
    name_given = "CUDA_ERROR_OUT_OF_MEMORY";
    assert_string_equal(name(), "CUDA_ERROR_OUT_OF_MEMORY");
    answer = CUDA_ERROR_INVALID_VALUE;
    assert_string_equal(name(), "error 2");
}

/* ---- attributes ---- */

static CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    *value = attribute == CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY && device == 0;
    return answer;
}

TEST(a_device_has_what_the_driver_says_it_has)
{
    assert_false(rs_driver_device_has(0, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    rs_driver.cuDeviceGetAttribute = get_attribute;
    assert_true(rs_driver_device_has(0, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    assert_false(rs_driver_device_has(1, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
    answer = CUDA_ERROR_INVALID_VALUE;
    assert_false(rs_driver_device_has(0, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY));
}
