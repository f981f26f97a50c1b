/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

typedef int door_function(const char *name);

/* Makes PAIRS blocks and frees them, and some wrong calls; prints the answers.  0 if all is well.
 */
__attribute__((visibility("default"))) door_function door_use;

/* A call that fails and leaves its error with its own runtime; and what that runtime then says. */
__attribute__((visibility("default"))) door_function door_fail;

/* Blocks of both devices, taken right after cudaSetDevice; each says where it lies, is freed with
 * the other device current, and once more, wrongly. */
__attribute__((visibility("default"))) door_function door_devices;

/* Blocks that stay until the library is unloaded or the process ends: its destructor frees them. */
__attribute__((visibility("default"))) door_function door_keep;

/* A block that another library is to free; and that. */
__attribute__((visibility("default"))) void *door_make(void);
__attribute__((visibility("default"))) int door_free(const char *name, void *block);

__attribute__((visibility("default"))) door_function door_last_error;
