/* SPDX-License-Identifier: Apache-2.0 */
/* Names addresses of code in another process: the object, the function, and file and line where
 * there is debug information. */
#pragma once

#include "trace/symbol.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct code;

/* Reads which objects the process has in memory.  NULL where it does not let itself be looked at.
 * code_close is due. */
struct code *code_open(int process);
void code_close(struct code *code);

/* An address that was asked about. */
struct code_place {
    struct rs_symbol symbol; /* of the call that returns to the address; a demangled function */
    char *line;              /* "FILE:LINE", or NULL */
};

/* Asks about the call that returns to the address.  The answer is complete after code_find_lines;
 * it lives until code_close, at a place that stays.  NULL without memory. */
const struct code_place *code_ask(struct code *code, uintptr_t return_address);

/* Finds file and line of all that was asked about, by addr2line, where it is installed. */
void code_find_lines(struct code *code);
