/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on request: a call that fails, or is late. See hostcuda.h for the rules' text. */
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
#include "driver/entry_table.h"

#include <cuda.h>

/* Takes the rules of HOSTCUDA_FAULT; ends the process if they cannot be read. */
void hc_fault_read(void);

/* Returns the error that a call must fail with, or CUDA_SUCCESS; sleeps as a rule says. */
CUresult hc_fault_before(enum hc_fn fn);
void hc_fault_after(enum hc_fn fn);
