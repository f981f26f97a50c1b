/* SPDX-License-Identifier: Apache-2.0 */
/* fixed_size's configuration, for binning, which makes its bins of it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct rs_fixed_size_config {
    size_t block_size;
    uint64_t blocks_to_preallocate;
};
