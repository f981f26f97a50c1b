/* SPDX-License-Identifier: Apache-2.0 */
#include "hook/caller.h"

#include "driver/loader.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

void *rs_caller_next(const char *symbol)
{
    return rs_real_dlsym()(RTLD_NEXT, symbol); /* we are the caller: after us */
}

static const struct link_map *object_of(const void *address)
{
    struct link_map *object = NULL;
    Dl_info info;

    return dladdr1(address, &info, (void **)&object, RTLD_DL_LINKMAP) ? object : NULL;
}

static const struct link_map *our_object(void)
{
    return object_of((const void *)rs_caller_find);
}

/* In the order of loading, which for what was there at start is the order of the global scope. */
static bool comes_before_us(const struct link_map *object)
{
    const struct link_map *before = our_object();

    while (before && before != object)
        before = before->l_prev;
    return before != NULL;
}

/* By a handle of the caller's own object: its local scope, which RTLD_NEXT from here cannot see. */
static void *find_in_object(const struct link_map *object, const char *symbol)
{
    void *handle = dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
    void *found;

    if (!handle)
        return NULL;
    found = rs_real_dlsym()(handle, symbol);
    dlclose(handle); /* the object calls us, so it stays */
    return found && object_of(found) != our_object() ? found : NULL;
}

void *rs_caller_find(const void *caller, const char *symbol)
{
    const struct link_map *object = object_of(caller);
    void *found = NULL;

    if (object && !comes_before_us(object))
        found = find_in_object(object, symbol);
    return found ? found : rs_caller_next(symbol);
}

void *rs_caller_find_to_keep(const void *caller, const char *symbol, bool *keep)
{
    void *found = rs_caller_find(caller, symbol);
    const struct link_map *object = found ? object_of(found) : NULL;

    /* The reference is never given back. */
    *keep = object && object != object_of(caller) &&
            dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD) != NULL;
    return found;
}

bool rs_caller_comes_before_us(const void *caller)
{
    const struct link_map *object = object_of(caller);

    return object && comes_before_us(object);
}
