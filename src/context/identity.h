/* SPDX-License-Identifier: Apache-2.0 */
/* Which context a handle is.  The context is current for all below, but where they say so. */
#pragma once

#include "context/context_record.h"

#include <stdbool.h>

/* 0 where the driver has no ids.  Whichever context is current. */
unsigned long long rs_context_id_of(CUcontext handle);

/* The context has ended, and its memory with it. */
bool rs_context_is_gone(struct rs_witness witness);

/* The same, whichever context is current. */
bool rs_context_is_gone_there(struct rs_witness witness, CUcontext handle);

/* The context that owns memory allocated while `handle` is current: itself, or a green context's
 * primary.  The block that shows it is for rs_context_keep_probe: freeing it would wait for the
 * device. */
CUcontext rs_context_memory_owner(CUcontext handle, CUdeviceptr *block);

/* Keeps the block that showed who owns memory as a sentinel, or gives it back in the order of a
 * stream of our own: a kernel may wait for this very thread.  The driver counts it as taken until
 * somebody waits for that stream, which is idle at once unless channels are shared. */
void rs_context_keep_probe(struct rs_context *context, CUdeviceptr block);

/* A context that was found while no stack was wanted on its device may be a green one; its memory
 * is its primary's, and so would its fences have to be.  The caller holds the contexts' lock. */
bool rs_context_owns_memory(struct rs_context *context);
