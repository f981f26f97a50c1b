/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

typedef int door_function(const char *name);

/* Makes PAIRS blocks and frees them, and some wrong calls; prints the answers.  0 if all is well.
 */
__attribute__((visibility("default"))) door_function door_use;

/* A call that fails and leaves its error with its own runtime; and what that runtime then says. */
__attribute__((visibility("default"))) door_function door_fail;
__attribute__((visibility("default"))) door_function door_last_error;
