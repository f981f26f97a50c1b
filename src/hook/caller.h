/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller would have bound to without us. */
#pragma once

#include <stdbool.h>

/* The definition of `symbol` that the object holding the code address `caller` finds in itself and
 * its dependencies; where it has none, and for objects that come before us in the global scope (the
 * main program, and a library preloaded before us, which asked for the next definition after its
 * own), the next one after us.  Never ours.  NULL when there is none. */
void *rs_caller_find(const void *caller, const char *symbol);

/* The next definition after ours in the global scope. */
void *rs_caller_next(const char *symbol);

/* Changes whenever an object was unloaded: what was found before may be gone. */
unsigned long long rs_caller_unload_count(void);
