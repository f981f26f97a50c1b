/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the definition of a symbol to which a caller would have been bound without the library, and
 * the shared object to which a caller belongs. */
#pragma once

#include "base/check.h"
#include "base/thread.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the definition of `symbol` in the object that holds the code address `caller`, or in one
 * of its dependencies; if they have none, the result of rs_caller_next. Only rs_caller_next is
 * asked if the object precedes the library in the global scope (the main program, or a library that
 * was preloaded before it). Never returns the library's own definition. NULL when there is no other
 * one. */
void *rs_caller_find(const void *caller, const char *symbol);

/* Does what rs_caller_find does, for a function of a CUDA runtime. If that finds nothing, as for
 * code that the program generated, returns the definition of the first loaded object that has
 * one. */
void *rs_caller_find_runtime(const void *caller, const char *symbol);

/* Does what rs_caller_find_runtime does, and sets *keep to true if the caller may keep the result:
 * the object that has the definition then stays loaded from now on. *keep is false when there is no
 * definition, when it is in the caller's own object, which the program must be able to unload, and
 * when no reference to its object can be taken. */
void *rs_caller_find_to_keep(const void *caller, const char *symbol, bool *keep);

/* Returns the definition that follows the library's own in the global scope; NULL when there is
 * none. */
void *rs_caller_next(const char *symbol);

RS_COLD unsigned rs_caller_object_slowly(const void *caller);

static inline size_t rs_caller_slot(const void *caller)
{
    return (uintptr_t)caller / 16 % RS_RECENT_CALLERS;
}

/* Returns the number of the object (trace/object.h) that asks for memory by a call that returns to
 * `caller`. While a runtime passes on the request of another object, this is that object's number.
 * 0: not known, or stacks do not serve. */
RS_HOT_INLINE unsigned rs_caller_object(const void *caller)
{
    size_t slot = rs_caller_slot(caller);

    return RS_LIKELY(rs_thread.callers[slot].address == caller) ? rs_thread.callers[slot].object
                                                                : rs_caller_object_slowly(caller);
}

/* For use in a hook: the object to which the hook's call returns. */
#define RS_CALLER_OBJECT() rs_caller_object(__builtin_return_address(0))

/* Called around a call of a runtime's function that the object made: what the runtime asks of the
 * driver meanwhile counts as the object's request. rs_caller_forward_begin returns the value that
 * rs_caller_forward_end needs. */
unsigned rs_caller_forward_begin(unsigned object);
void rs_caller_forward_end(unsigned before);

/* True when the caller's object precedes the library in the global scope. */
bool rs_caller_comes_before_us(const void *caller);

/* Returns the path of a libcuda that precedes the library in the global scope; NULL: there is none.
 */
const char *rs_caller_driver_before_us(void);
