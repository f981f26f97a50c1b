/* SPDX-License-Identifier: Apache-2.0 */
#include "unit.h"

#include "charge/charge.h"

#include <stdint.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static size_t bytes_of(size_t width, size_t height, size_t depth, CUarray_format format,
                       unsigned channels, unsigned flags, unsigned levels)
{
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = width,
                                          .Height = height,
                                          .Depth = depth,
                                          .Format = format,
                                          .NumChannels = channels,
                                          .Flags = flags};

    return rs_array_bytes(&descriptor, levels);
}

TEST(an_array_is_extents_times_element_in_whole_units)
{
    assert_int_equal(bytes_of(1, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 1), 4 * KIB);
    assert_int_equal(bytes_of(64 * KIB, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 1), 512 * KIB);
    assert_int_equal(bytes_of(4096, 4, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0, 1), 32 * KIB);
    assert_int_equal(bytes_of(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0, 1), 4 * MIB);
    assert_int_equal(bytes_of(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 4, 0, 1), 16 * MIB);
    assert_int_equal(bytes_of(1024, 1024, 3, CU_AD_FORMAT_HALF, 2, 0, 1), 12 * MIB);
    assert_int_equal(bytes_of(4096, 1024, 0, CU_AD_FORMAT_BC7_UNORM, 4, 0, 1), 4 * MIB);
    assert_int_equal(bytes_of(1024, 1024, 0, CU_AD_FORMAT_UNORM_INT16X4, 4, 0, 1), 8 * MIB);
    assert_int_equal(bytes_of(1024, 1024, 0, CU_AD_FORMAT_SNORM_INT16X2, 2, 0, 1), 4 * MIB);
}

TEST(levels_halve_and_layers_do_not)
{
    assert_int_equal(bytes_of(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0, 2), 5 * MIB);
    assert_int_equal(bytes_of(1024, 1024, 4, CU_AD_FORMAT_FLOAT, 1, 0, 2), 18 * MIB);
    assert_int_equal(bytes_of(1024, 1024, 4, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED, 2),
                     20 * MIB);
}

TEST(sparse_arrays_have_no_memory)
{
    assert_int_equal(bytes_of(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_SPARSE, 1), 0);
    assert_int_equal(
        bytes_of(1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_DEFERRED_MAPPING, 1), 0);
    assert_int_equal(bytes_of(0, 1024, 0, CU_AD_FORMAT_FLOAT, 1, 0, 1), 0);
}

TEST(no_product_wraps)
{
    assert_int_equal(bytes_of(SIZE_MAX, 1, 0, CU_AD_FORMAT_FLOAT, 4, 0, 1), SIZE_MAX);
    assert_int_equal(bytes_of(SIZE_MAX / 64, SIZE_MAX, 0, CU_AD_FORMAT_FLOAT, 1, 0, 1), SIZE_MAX);
    assert_int_equal(bytes_of(1 << 20, 1 << 20, SIZE_MAX / 2, CU_AD_FORMAT_FLOAT, 1, 0, 1),
                     SIZE_MAX);
}
