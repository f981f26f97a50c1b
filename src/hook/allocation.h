/* SPDX-License-Identifier: Apache-2.0 */
/* The functions by which the hooks in other files allocate from stacks and free. A function that
 * fills in *result returns true when *result is the answer to the program, which may be an error,
 * and false when the hook must forward the call unchanged. *address is written only on success. */
#pragma once

#include "config/mode.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Allocates from the current context's stack for the group's kind of memory, if RMM_HOOKS names the
 * group. Pinned memory has a stack for each set of CU_MEMHOSTALLOC flags. If the settings deny
 * every allocation, the answer is CUDA_ERROR_OUT_OF_MEMORY. The block may be used in the order of
 * the stream (NULL: in any order). `mode` is the answer of rs_mode_now (config/mode.h). `object` is
 * the number of the shared object that asks for the memory (trace/object.h); 0: not known. */
bool rs_shim_allocate(enum rs_mode mode, unsigned hook_group, unsigned host_flags,
                      size_t size_bytes, CUstream stream, unsigned object, CUdeviceptr *address,
                      CUresult *result);

/* Deallocates a block of device memory in the order of a stream (NULL: of no stream), or a block of
 * managed memory. The block's context need not be current. An address in memory of the library that
 * begins no live block is answered with the driver's error for a wrong free, and never reaches the
 * driver. The caller has made sure that stacks serve. */
bool rs_shim_free_in_order(CUdeviceptr address, CUstream stream, CUresult *result);

/* Allocate and free for the runtime layer, which has made sure that stacks serve. `which_stack` is
 * one of RS_STACK_... in context/context.h. They return true only for success. After a false result
 * the program's own runtime makes the call, so that the failure becomes its last error.
 * rs_serve_fast remembers a refused request. When the runtime passes that request on to the driver
 * layer, it is refused there at once, so that it waits, fails and is logged only once. It is tried
 * again if the thread has freed a block in between. */
bool rs_serve_fast(unsigned which_stack, size_t size_bytes, unsigned object, CUdeviceptr *address);
bool rs_free_fast(CUdeviceptr address);

/* Forgets the request that rs_serve_fast remembers as refused. Called when the runtime's call has
 * returned. */
void rs_shim_forget_refusal(void);
