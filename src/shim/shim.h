/* SPDX-License-Identifier: Apache-2.0 */
/* What hooks do with memory.  Each function returns false when the call is not ours to answer: then
 * the hook forwards it unchanged.  None writes an output unless it succeeds. */
#pragma once

#include "config/config.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Allocates from the current context's stack. */
bool rs_shim_allocate(size_t size_bytes, CUdeviceptr *address, CUresult *result);

/* The same for work in the order of a stream (NULL: any), where RMM_HOOKS has the group.
 * rs_shim_free_in_order does not need the block's context current. */
bool rs_shim_allocate_in_order(unsigned hook_group, size_t size_bytes, CUstream stream,
                               CUdeviceptr *address, CUresult *result);
bool rs_shim_free_in_order(CUdeviceptr address, CUstream stream, CUresult *result);

/* cuMemAllocAsync and cuMemFreeAsync.  The stream is never NULL: CU_STREAM_LEGACY and
 * CU_STREAM_PER_THREAD are those of the current context.  Not ours are: an allocation that
 * RMM_HOOKS does not ask for, on a stream that captures, from a current pool that is the program's
 * own or that it gave other devices access to, and where the stack's own frees would wait. */
bool rs_shim_allocate_async(size_t size_bytes, CUstream stream, CUdeviceptr *address,
                            CUresult *result);
bool rs_shim_free_async(CUdeviceptr address, CUstream stream, CUresult *result);

/* The program gave devices access to a pool. */
void rs_shim_note_pool_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);

/* Allocates height rows of width_bytes each, at the driver's pitch. */
bool rs_shim_allocate_pitch(size_t width_bytes, size_t height, unsigned element_bytes,
                            CUdeviceptr *address, size_t *pitch_bytes, CUresult *result);

/* Deallocates device or managed memory.  Addresses in memory of ours that are no live block's
 * beginning are answered with the driver's error for such a free and never reach it. */
bool rs_shim_free(CUdeviceptr address, CUresult *result);

/* Managed memory.  What is not attached globally is the driver's: see introspect/managed.h. */
bool rs_shim_allocate_managed(size_t size_bytes, unsigned flags, CUdeviceptr *address,
                              CUresult *result);

/* Pinned host memory, with the driver's flags. */
bool rs_shim_allocate_host(size_t size_bytes, unsigned flags, void **address, CUresult *result);
bool rs_shim_free_host(void *address, CUresult *result);

/* The same as the runtime layer wants it, which has seen that stacks serve: true only for success,
 * everything else untouched (which_stack: RS_STACK_... of context/context.h; so that the program's
 * runtime sees the failing call itself and keeps its last error).  What was refused is not asked
 * for again when the runtime passes it on to the driver layer: one request, one wait, one failure
 * in the counters and the log.  When the runtime is done with it, the layer forgets it. */
bool rs_shim_allocate_at_once(unsigned which_stack, size_t size_bytes, CUdeviceptr *address);
void rs_shim_forget_refusal(void);
bool rs_shim_free_at_once(CUdeviceptr address);
