/* SPDX-License-Identifier: Apache-2.0 */
/* Names of code addresses, for reports at the end: slow, reads files. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { RS_SYMBOL_NAME_BYTES = 192 };

struct rs_symbol {
    char object[RS_SYMBOL_NAME_BYTES];   /* file name without folders; "?" when no object has it */
    char function[RS_SYMBOL_NAME_BYTES]; /* as in the object file (mangled); "" when not known */
    uintptr_t object_offset;             /* what addr2line -e OBJECT wants */
    uintptr_t function_offset;
};

/* Describes the call that returns to this address: from the loader's tables and, for functions that
 * are not exported, from the object file's own symbols. */
void rs_symbol_describe(const void *return_address, struct rs_symbol *symbol);
