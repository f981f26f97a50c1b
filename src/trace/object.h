/* SPDX-License-Identifier: Apache-2.0 */
/* Objects (the program and the libraries that are loaded into it) that ask for memory.  Each has a
 * number small enough for a block's record, which means the same object as long as the process
 * lives; its name outlives the object. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { RS_OBJECTS_MAX = 512 };

/* Returns the number of the object that holds the code address; 0 when no object holds it, as with
 * code that the program generated, and when there are more than RS_OBJECTS_MAX objects.  Thread
 * safe. */
unsigned rs_object_of(const void *address);

/* Does as rs_object_of for the return address of a call, with a cache that all threads share. It
 * asks the loader only if the cache does not have the address, or if rs_object_review has found
 * that another object replaced the cached one. */
unsigned rs_object_of_caller(const void *address);

/* Returns a number that identifies the object that holds the address: another object that is loaded
 * to the same place later, from another file, has another number. Returns 0 when no object holds
 * the address. Takes no lock of the loader if glibc is 2.35 or newer, both here and where the
 * library was built; otherwise takes one under which no constructor runs. */
unsigned long long rs_object_identity(const void *address);

/* Finds the file of the object that holds the address ("" for the program's own), and the
 * difference between its addresses and those in the file; both are valid as long as the object is
 * loaded. Returns false where no object holds the address. Takes the same locks as
 * rs_object_identity. */
bool rs_object_origin(const void *address, const char **path, uintptr_t *base);

/* Looks for objects that were loaded to a place where an earlier object had asked for memory.
 * Callers are cached by address, so blocks of both objects may have the number of the earlier one:
 * from now on that number has no name.  Takes a lock of the loader under which no constructor runs.
 */
void rs_object_review(void);

/* Returns the object's file name without folders, or the program's name for the program. Returns
 * NULL for number 0, and for an object that rs_object_review found replaced. */
const char *rs_object_name(unsigned number);

/* ---- names of code addresses: slow, since object files are read ---- */

enum { RS_SYMBOL_NAME_BYTES = 192 };

struct rs_symbol {
    char object[RS_SYMBOL_NAME_BYTES];   /* the object's file name without folders; "?" when it is
                                            unknown */
    char function[RS_SYMBOL_NAME_BYTES]; /* the function's name as in the object file, where C++
                                            names are mangled; "" when unknown */
    uintptr_t object_offset;             /* the address to give to addr2line -e OBJECT */
    uintptr_t function_offset; /* the distance from the function's beginning; 0 when unknown */
};

/* Sets the function's name and offset in *symbol from the object file at `path`: from its table of
 * symbols, or, if it has none, from the symbols that it exports. `address` is one as the file
 * counts it (object_offset). If no function is found, *symbol stays as it is. */
void rs_symbol_in_file(const char *path, uintptr_t address, struct rs_symbol *symbol);

/* Describes the place of the call that returns to this address, from the object file's symbols.
 * With `may_lock` it first asks the loader for exported symbols, which takes the loader's lock. A
 * caller must not set may_lock if it may hold a lock for which a constructor waits, which the
 * loader runs under its own lock. */
void rs_symbol_describe(const void *return_address, bool may_lock, struct rs_symbol *symbol);
