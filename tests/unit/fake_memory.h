/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind a fake leaf's addresses, and the driver functions that fill and copy it: for
 * resources that look at what is in a block. */
#pragma once

#include "driver/cuda.h"

#include <stdatomic.h>
#include <stddef.h>

enum { FAKE_MEMORY_BYTES = 1 << 30 };

/* Maps the first addresses that a fake leaf gives out, and assigns rs_driver's members.  Again: all
 * memory is zero and the counts are too. */
void fake_memory_begin(void);

/* A context that ends takes its page-locked host memory along. */
void fake_memory_end_context(void);

extern _Atomic unsigned fake_memory_wrong_calls; /* outside relaxed mode or without a context */
extern _Atomic unsigned fake_memory_waits;       /* for the own stream */
extern _Atomic int fake_memory_answer;           /* of fills and copies, when not CUDA_SUCCESS */

/* The bytes behind a block. */
unsigned char *fake_memory_at(CUdeviceptr address);
