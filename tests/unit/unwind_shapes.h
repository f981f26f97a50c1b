/* SPDX-License-Identifier: Apache-2.0 */
/* Functions with frames of many shapes, compiled in several ways (meson.build), which call what
 * they are given. */
#pragma once

typedef void shape_call(void *data);
typedef void shape(shape_call *call, void *data);

/* What each module has under these names: an array, ended by NULL, and a function whose last
 * instruction is the call, so that it must not return. */
#define SHAPES_NAME "unwind_shapes"
#define ENDING_NAME "unwind_ending"
