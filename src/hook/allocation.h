/* SPDX-License-Identifier: Apache-2.0 */
/* Allocation from stacks, and their deallocation, for hooks beside those of hook/allocation.c.  A
 * function returns false when the call is not the library's to answer: then the hook forwards it
 * unchanged.  No function writes an output unless it succeeds. */
#pragma once

#include "config/mode.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Allocates from the current context's stack for the group's kind of memory, where RMM_HOOKS has
 * the group, and, for pinned memory, for the driver's flags.  The work that uses the block is in
 * the order of the stream (NULL: any).  The caller has asked the mode (config/mode.h), and passes
 * it.  `object` asks, 0 where it is not known (trace/object.h). */
bool rs_shim_allocate(enum rs_mode mode, unsigned hook_group, unsigned host_flags,
                      size_t size_bytes, CUstream stream, unsigned object, CUdeviceptr *address,
                      CUresult *result);

/* Deallocates device memory in the order of a stream (NULL: any), and managed memory.  The block's
 * context need not be current.  An address in memory of the library that begins no live block is
 * answered with the driver's error for a wrong free, and never reaches the driver.  Only where
 * stacks serve: the caller has asked. */
bool rs_shim_free_in_order(CUdeviceptr address, CUstream stream, CUresult *result);

/* For the runtime layer, which has asked whether stacks serve: true only for success, and nothing
 * is written otherwise, so that the program's runtime sees the failing call and keeps its last
 * error. `which_stack`: RS_STACK_... of context/context.h.  A refused request is remembered: when
 * the runtime passes it on to the driver layer it is not tried again, so that it waits, fails and
 * is logged once. */
bool rs_serve_fast(unsigned which_stack, size_t size_bytes, unsigned object, CUdeviceptr *address);
bool rs_free_fast(CUdeviceptr address);

/* The runtime is done with the call: forgets the refused request. */
void rs_shim_forget_refusal(void);
