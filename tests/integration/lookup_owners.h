/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

typedef void *find_function(void *handle, const char *name);
typedef void *self_function(void);

/* dlsym, called from within the library. */
find_function lookup_next_find;

/* What dlsym(RTLD_NEXT) gives this library for the name of this very function, as LLVM's OpenMP
 * runtime does with ompt_start_tool. */
self_function lookup_self;
