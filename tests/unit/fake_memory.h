/* SPDX-License-Identifier: Apache-2.0 */
/* Memory behind the addresses of a fake leaf, and the driver functions that fill and copy it: for
 * resources that read or write inside a block. */
#pragma once

#include "driver/cuda.h"

#include <stdatomic.h>
#include <stddef.h>

enum { FAKE_MEMORY_BYTES = 1 << 30 };

/* Maps memory for the first FAKE_MEMORY_BYTES of a fake leaf's addresses and assigns the members of
 * rs_driver.  A further call zeroes memory and counters. */
void fake_memory_begin(void);

/* Ends the context, which frees its page-locked host memory. */
void fake_memory_end_context(void);

/* Calls outside relaxed capture mode or without a context. */
extern _Atomic unsigned fake_memory_wrong_calls;
extern _Atomic unsigned fake_memory_waits; /* waits for the library's own stream */
extern _Atomic int fake_memory_answer;     /* answer of fills and copies, when not CUDA_SUCCESS */

/* Returns the memory behind an address. */
unsigned char *fake_memory_at(CUdeviceptr address);
