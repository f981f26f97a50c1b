/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of functions by name: dlsym (entered through dlsym_<cpu>.S) and cuGetProcAddress.
 *
 * The real look-up is always made first, and the address that it found is translated to a hook's: a
 * name alone does not tell the ABI. */
#pragma once

#include "driver/cuda.h"

/* The answer to dlsym: `address`, or, when forward_to is set, the result of a jump there. */
struct rs_answer {
    void *address;
    void *forward_to;
};

__attribute__((visibility("hidden"))) struct rs_answer rs_look_up(void *handle, const char *symbol,
                                                                  const void *caller);

/* The hook for the function that cuGetProcAddress(name, version, flags) returned; the function
 * itself when it has none. */
void *rs_look_up_translate(const char *name, void *function, int version, cuuint64_t flags);
