/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of functions by name: dlsym (entered through dlsym_<cpu>.S) and cuGetProcAddress.
 *
 * The real look-up is always made first, and what it returned is translated by address: a name
 * alone does not say which ABI was meant. */
#pragma once

#include "driver/cuda.h"

/* What dlsym returns: `address`, or, when forward_to is set, whatever a jump there returns. */
struct rs_answer {
    void *address;
    void *forward_to;
};

__attribute__((visibility("hidden"))) struct rs_answer rs_look_up(void *handle, const char *symbol,
                                                                  const void *caller);

/* Our entry for what cuGetProcAddress(name, version, flags) returned, or that itself. */
void *rs_look_up_translate(const char *name, void *function, int version, cuuint64_t flags);
