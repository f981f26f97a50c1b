/* SPDX-License-Identifier: Apache-2.0 */
/* The definition of a symbol that a caller would have bound to without the library. */
#pragma once

#include "base/check.h"
#include "base/thread.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The definition of `symbol` that the object of the code address `caller` finds in itself and in
 * its dependencies, or else rs_caller_next.  For an object that precedes the library in the global
 * scope (the main program, or a library that was preloaded before it) always rs_caller_next.  Never
 * the library's own definition; NULL when there is none. */
void *rs_caller_find(const void *caller, const char *symbol);

/* The same for a call of a runtime's function, whose caller has it somehow: where nothing is found,
 * as for code that the program generated, that of the object that was loaded first of those that
 * have one. */
void *rs_caller_find_runtime(const void *caller, const char *symbol);

/* The same for an address that is to be kept: the object of the definition stays loaded from now
 * on. *keep is false when it is the caller's own object, which must be free to be unloaded: then
 * look the symbol up again each time. */
void *rs_caller_find_to_keep(const void *caller, const char *symbol, bool *keep);

/* The next definition after the library's own in the global scope. */
void *rs_caller_next(const char *symbol);

RS_COLD unsigned rs_caller_object_slowly(const void *caller);

static inline size_t rs_caller_slot(const void *caller)
{
    return (uintptr_t)caller / 16 % RS_RECENT_CALLERS;
}

/* The object (trace/object.h) that asks for memory by a call which returns to `caller`; where a
 * runtime passes on the request of another object, that one.  0: not known, and where stacks do not
 * serve. */
RS_HOT_INLINE unsigned rs_caller_object(const void *caller)
{
    size_t slot = rs_caller_slot(caller);

    return RS_LIKELY(rs_thread.callers[slot].address == caller) ? rs_thread.callers[slot].object
                                                                : rs_caller_object_slowly(caller);
}

/* In a hook: who asked is the object that the hook's call returns to. */
#define RS_CALLER_OBJECT() rs_caller_object(__builtin_return_address(0))

/* Around a call of a runtime's function for that object: what the driver is asked for meanwhile is
 * the object's request.  The first returns what the second takes. */
unsigned rs_caller_forward_begin(unsigned object);
void rs_caller_forward_end(unsigned before);

/* True when the caller's object precedes the library in the global scope. */
bool rs_caller_comes_before_us(const void *caller);

/* The path of a libcuda that precedes the library in the global scope, NULL: none. */
const char *rs_caller_driver_before_us(void);
