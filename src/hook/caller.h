/* SPDX-License-Identifier: Apache-2.0 */
/* The definition of a symbol that a caller would have bound to without the library. */
#pragma once

#include <stdbool.h>

/* The definition of `symbol` that the object of the code address `caller` finds in itself and in
 * its dependencies, or else rs_caller_next.  For an object that precedes the library in the global
 * scope (the main program, or a library that was preloaded before it) always rs_caller_next.  Never
 * the library's own definition; NULL when there is none. */
void *rs_caller_find(const void *caller, const char *symbol);

/* The same for an address that is to be kept: the object of the definition stays loaded from now
 * on. *keep is false when it is the caller's own object, which must be free to be unloaded: then
 * look the symbol up again each time. */
void *rs_caller_find_to_keep(const void *caller, const char *symbol, bool *keep);

/* A number of the object that holds the caller, which another object at the same place does not
 * have; 0 when no object holds the address.  Takes no lock of the loader where glibc is 2.35 or
 * newer. */
unsigned long long rs_caller_identity(const void *caller);

/* The next definition after the library's own in the global scope. */
void *rs_caller_next(const char *symbol);

/* True when the caller's object precedes the library in the global scope. */
bool rs_caller_comes_before_us(const void *caller);
