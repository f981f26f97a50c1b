/* SPDX-License-Identifier: Apache-2.0 */
/* Names of code addresses, for reports at exit: slow, since it reads object files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

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

/* Describes the call that returns to this address, from the loader's tables and, for functions
 * that are not exported, from the object file's symbol table. */
void rs_symbol_describe(const void *return_address, struct rs_symbol *symbol);

/* As rs_symbol_describe, from the files alone: for callers that may hold a lock which a
 * constructor, run by the loader under its own lock, may wait for (rs_object_origin). */
void rs_symbol_describe_by_file(const void *return_address, struct rs_symbol *symbol);
