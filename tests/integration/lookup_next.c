/* SPDX-License-Identifier: Apache-2.0 */
/* A library that looks functions up: what RTLD_NEXT means depends on who asks. */
#include "lookup_owners.h"

#include <dlfcn.h>

void *lookup_next_find(void *handle, const char *name)
{
    void *found = dlsym(handle, name);

    __asm__ volatile(""); /* no tail call: dlsym must see this library as its caller */
    return found;
}

void *lookup_self(void)
{
    void *found = dlsym(RTLD_NEXT, "lookup_self");

    __asm__ volatile("");
    return found;
}
