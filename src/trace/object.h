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

/* The same for a return address of calls, without asking the loader again: what it answered for
 * the address before, by whatever thread, as long as no review has found that object replaced. */
unsigned rs_object_of_caller(const void *address);

/* A number of the object that holds the address, which another object at the same place does not
 * have; 0 when no object holds the address.  Takes no lock of the loader where glibc is 2.35 or
 * newer, and with 2.34 one that no constructor runs under. */
unsigned long long rs_object_identity(const void *address);

/* Finds the file of the object that holds the address ("" for the program's own), and the
 * difference between its addresses and those in the file; both are the object's as long as it is
 * loaded.  False where no object holds the address.  Locks as rs_object_identity does. */
bool rs_object_origin(const void *address, const char **path, uintptr_t *base);

/* Looks for objects that were loaded where another one had asked for memory.  A caller's number is
 * kept by its address, so blocks of both may have the old object's number: from now on that number
 * has no name.  Takes a lock of the loader, which no constructor runs under. */
void rs_object_review(void);

/* Returns the object's file name without folders, the program's own name for the program; NULL for
 * 0 and for an object that rs_object_review found replaced. */
const char *rs_object_name(unsigned number);

/* ---- names of code addresses, for reports at exit: slow, since object files are read ---- */

enum { RS_SYMBOL_NAME_BYTES = 192 };

struct rs_symbol {
    char object[RS_SYMBOL_NAME_BYTES];   /* file name without folders; "?" when there is none */
    char function[RS_SYMBOL_NAME_BYTES]; /* as in the object file (mangled); "" when unknown */
    uintptr_t object_offset;             /* the address for addr2line -e OBJECT */
    uintptr_t function_offset;           /* from the function's beginning; 0 when unknown */
};

/* Names the function at an address as the object file counts it (object_offset), from the file's
 * symbols, or from those that it exports where it has no others.  Changes nothing else. */
void rs_symbol_in_file(const char *path, uintptr_t address, struct rs_symbol *symbol);

/* Describes the call that returns to this address, from the object file's symbols and, with
 * `may_lock`, before these from the loader's tables of exported ones.  Not so for callers that may
 * hold a lock which a constructor, run by the loader under its own lock, may wait for
 * (rs_object_origin). */
void rs_symbol_describe(const void *return_address, bool may_lock, struct rs_symbol *symbol);
