/* SPDX-License-Identifier: Apache-2.0 */
/* Identifies the context behind a handle.  The context in question must be current, except where a
 * comment says otherwise. */
#pragma once

#include "context/context_record.h"

#include <stdbool.h>

/* Returns the id of cuCtxGetId, or 0 on drivers without it.  Any context may be current. */
unsigned long long rs_context_id_of(CUcontext handle);

/* The same.  *is_faulty: the driver answered with the error of work that has failed (rs_is_fault)
 * instead, so the context has not ended. */
unsigned long long rs_context_ask_id(CUcontext handle, bool *is_faulty);

/* True when the witness shows that its context has ended.  False without a witness, and when the
 * driver gives another error than INVALID_VALUE. Any context may be current. */
bool rs_context_is_gone(struct rs_witness witness);

/* As rs_context_is_gone, for a thread that may have no context current: makes `handle` current for
 * the question. */
bool rs_context_is_gone_there(struct rs_witness witness, CUcontext handle);

/* Two ways to ask, while a call may be ending the context, whether it is still there.  Any context
 * may be current, or none.  The first is for a handle that stays valid; the second asks about
 * memory at an address that was the context's, and is for a handle that the driver may be freeing.
 */
bool rs_context_is_there(const struct rs_context *context);
bool rs_context_is_at(const struct rs_context *context, CUdeviceptr address);

/* Returns the context that owns memory allocated while `handle` is current: `handle` itself, or the
 * primary context of a green one.  *block is the 512-byte allocation that was asked about (0:
 * none), for rs_context_keep_probe; freeing it here would wait for the device. */
CUcontext rs_context_memory_owner(CUcontext handle, CUdeviceptr *block);

/* Keeps the block of rs_context_memory_owner as witness or sentinel, or else frees it in the order
 * of an own stream, since cuMemFree would wait and a kernel may wait for this very thread.  The
 * driver counts the freed block as used until a thread synchronises with that stream. */
void rs_context_keep_probe(struct rs_context *context, CUdeviceptr block);

/* True when the context owns the memory that is allocated in it.  A green context that was found
 * while its device had no stacks does not: its memory and its fences belong to the primary.  Asks
 * the driver once.  The caller holds the contexts' lock. */
bool rs_context_owns_memory(struct rs_context *context);
