/* SPDX-License-Identifier: Apache-2.0 */
/* Primary contexts of devices.  The caller must hold no lock. */
#pragma once

#include "context/context_record.h"

#include <stdbool.h>

/* Must stand around each release of a reference to the device's primary context, between
 * rs_context_ending_enter and rs_context_ending_leave (context/exclusion.h); the first returns what
 * the second needs.  Drops the context when that was the last reference, even where a new primary
 * context exists already. */
struct rs_context *rs_context_release_begin(CUdevice device);
void rs_context_release_finish(CUdevice device, struct rs_context *doubted, bool released);

/* Releases a reference to the device's primary context that the library took for a moment. */
void rs_context_release_primary(CUdevice device);

/* Returns the device's primary context; NULL while it is not active. */
CUcontext rs_context_primary(CUdevice device);

/* As rs_context_end_begin (context/end.h), for the device's primary context. */
struct rs_context *rs_context_end_begin_primary(CUdevice device);

/* Learns whether the current context `handle` is its device's primary one.  Must be called before
 * the context is described. */
void rs_context_learn_current(CUcontext handle);
