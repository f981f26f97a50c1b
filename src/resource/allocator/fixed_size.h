/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration of fixed_size, from which binning makes its bins. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct rs_fixed_size_config {
    size_t block_size;
    uint64_t blocks_to_preallocate;
};
