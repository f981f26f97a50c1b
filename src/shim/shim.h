/* SPDX-License-Identifier: Apache-2.0 */
/* The services behind the hooks.  Each function returns false when the call is not the library's to
 * answer: then the hook forwards it unchanged.  No function writes an output unless it succeeds.
 *
 * Each call asks the mode once (config/mode.h).  An allocation asks it here, unless its comment
 * says otherwise.  A free is passed on only where stacks serve: its hook has asked.  An
 * allocation's `object` is the one that asks, 0 where it is not known (trace/object.h). */
#pragma once

#include "config/mode.h"
#include "driver/cuda.h"

#include <stdbool.h>
#include <stddef.h>

/* Allocates from the current context's stack. */
bool rs_shim_allocate(size_t size_bytes, unsigned object, CUdeviceptr *address, CUresult *result);

/* The same for work in the order of a stream (NULL: any), where RMM_HOOKS has the group.  The
 * caller has asked the mode, and passes it. */
bool rs_shim_allocate_in_order(enum rs_mode mode, unsigned hook_group, size_t size_bytes,
                               CUstream stream, unsigned object, CUdeviceptr *address,
                               CUresult *result);

/* Deallocates in the order of a stream (NULL: any).  The block's context need not be current. */
bool rs_shim_free_in_order(CUdeviceptr address, CUstream stream, CUresult *result);

/* cuMemAllocAsync and cuMemFreeAsync.  The stream is never NULL: CU_STREAM_LEGACY and
 * CU_STREAM_PER_THREAD are the default streams of the current context.  An allocation is forwarded
 * when RMM_HOOKS does not name the group, when the stream captures, when the current pool is the
 * program's own or one that it gave other devices access to, and when the stack's frees wait. */
bool rs_shim_allocate_async(size_t size_bytes, CUstream stream, unsigned object,
                            CUdeviceptr *address, CUresult *result);
bool rs_shim_free_async(CUdeviceptr address, CUstream stream, CUresult *result);

/* The program gave devices access to a pool. */
void rs_shim_note_pool_access(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count);

/* Allocates height rows of width_bytes each, at the driver's pitch. */
bool rs_shim_allocate_pitch(size_t width_bytes, size_t height, unsigned element_bytes,
                            unsigned object, CUdeviceptr *address, size_t *pitch_bytes,
                            CUresult *result);

/* Deallocates device or managed memory.  An address in memory of the library that begins no live
 * block is answered with the driver's error for a wrong free, and never reaches the driver. */
bool rs_shim_free(CUdeviceptr address, CUresult *result);

/* Allocates managed memory that is attached globally; other flags are forwarded
 * (introspect/managed.h). */
bool rs_shim_allocate_managed(size_t size_bytes, unsigned flags, unsigned object,
                              CUdeviceptr *address, CUresult *result);

/* Pinned host memory, with the driver's flags. */
bool rs_shim_allocate_host(size_t size_bytes, unsigned flags, unsigned object, void **address,
                           CUresult *result);
bool rs_shim_free_host(void *address, CUresult *result);

/* For the runtime layer, which has asked whether stacks serve: true only for success, and nothing
 * is written otherwise, so that the program's runtime sees the failing call and keeps its last
 * error. `which_stack`: RS_STACK_... of context/context.h.  A refused request is remembered: when
 * the runtime passes it on to the driver layer it is not tried again, so that it waits, fails and
 * is logged once. */
bool rs_shim_allocate_at_once(unsigned which_stack, size_t size_bytes, unsigned object,
                              CUdeviceptr *address);
bool rs_shim_free_at_once(CUdeviceptr address);

/* The runtime is done with the call: forgets the refused request. */
void rs_shim_forget_refusal(void);
