/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the C API (include/rmmshim/rmmshim.h) that commands (shim/commands.c) and NVTX
 * ranges use too. All functions are thread safe and may be called in any process at any time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* The size of the buffer for a thread's last error. It is small, since it lies in the static block
 * of thread-local storage, which has little room. */
enum { RS_CONTROL_ERROR_BYTES = 200 };

/* Stores `line` (NULL: an empty line) as the thread's last error, which rmmshim_last_error returns.
 * Returns `result`, or -EINVAL if `result` is 0. */
int rs_control_error(int result, const char *line);

/* Begin and end a phase for another interface (NVTX). They report no error, since a program with
 * NVTX ranges need not be a process that stacks serve. */
void rs_control_push_range(const char *name, const void *owner);
void rs_control_pop_range(const void *owner);

/* Do what rmmshim_trim and rmmshim_set_limit do. *is_left is set as by rs_trim (charge/charge.h);
 * to false when nothing was trimmed. */
size_t rs_control_trim(int device, size_t keep_bytes, bool *is_left);
int rs_control_set_limit(int device, size_t bytes, bool *is_left);
