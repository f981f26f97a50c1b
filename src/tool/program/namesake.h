/* SPDX-License-Identifier: Apache-2.0 */
/* Objects that have variables with names of functions that the library exports.  The dynamic linker
 * puts the library's functions in their place, as it comes first: what such an object stores there,
 * it would write into code. */
#pragma once

#include "tool/program/load_order.h"

#include <stdbool.h>

enum { NAMESAKE_BYTES = 200 };

struct namesake {
    unsigned count;             /* of such variables */
    char names[NAMESAKE_BYTES]; /* of the first ones */
};

/* Looks at the object at `path`, for the library at `library`.  True when it has such variables,
 * and refers to them in a way that the linker redirects. */
bool namesake_look(const char *library, const char *path, struct namesake *found);

/* Calls `each` for each such object that comes behind the library. */
void namesake_find(const char *library, const struct load_order *order,
                   void (*each)(void *data, const char *path, const struct namesake *found),
                   void *data);
