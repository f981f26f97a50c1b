/* SPDX-License-Identifier: Apache-2.0 */
/* What a caller would have bound to without us. */
#pragma once

#include <stdbool.h>

/* The definition of `symbol` that the object holding the code address `caller` finds in itself and
 * its dependencies; where it has none, and for objects that come before us in the global scope (the
 * main program, and a library preloaded before us, which asked for the next definition after its
 * own), the next one after us.  Never ours.  NULL when there is none. */
void *rs_caller_find(const void *caller, const char *symbol);

/* The same for keeping: the object that has the definition stays loaded from now on.  *keep is
 * false when that object is the caller's own, which must be free to go: then look again each time.
 */
void *rs_caller_find_to_keep(const void *caller, const char *symbol, bool *keep);

/* Tells the object that holds the caller from another one that was loaded to its place later: 0
 * when nothing holds it.  Takes no lock of the loader's where glibc is 2.35 or newer. */
unsigned long long rs_caller_identity(const void *caller);

/* The next definition after ours in the global scope. */
void *rs_caller_next(const char *symbol);

/* True when the caller's object precedes us in the global scope. */
bool rs_caller_comes_before_us(const void *caller);
