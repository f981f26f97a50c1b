/* SPDX-License-Identifier: Apache-2.0 */
/* The size of a bin that has a resource of its own, for binning. */
#pragma once

#include "resource/resource.h"

/* Returns the size in bytes up to which this bin serves requests. */
size_t rs_bin_bytes(struct rs_mr *mr);
