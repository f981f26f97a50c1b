/* SPDX-License-Identifier: Apache-2.0 */
/* What binning asks a bin that has a resource of its own. */
#pragma once

#include "resource/resource.h"

/* Requests up to this size are for it. */
size_t rs_bin_bytes(struct rs_mr *mr);
