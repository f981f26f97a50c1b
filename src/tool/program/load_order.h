/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that the dynamic linker loads for a program, in the order in which it looks symbols
 * up in them.  The linker itself is asked (what `ldd` does): it maps the objects and runs nothing
 * of them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct load_order {
    char **paths;          /* without the program itself, which is the first object */
    size_t count, missing; /* objects that are loaded, and that are not found */
};

/* Asks for the program when it is started with that environment.  False where the linker cannot be
 * asked, or loads nothing.  load_order_free is due in any case. */
bool load_order_read(const char *program, char *const *environment, struct load_order *order);
void load_order_add(struct load_order *order, const char *path); /* copies it */
void load_order_free(struct load_order *order);

/* The index of the first object whose base name begins with the text; `count` when there is none.
 */
size_t load_order_find(const struct load_order *order, const char *begin);
