/* SPDX-License-Identifier: Apache-2.0 */
#include "hook/caller.h"

#include "driver/loader.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void *rs_caller_next(const char *symbol)
{
    return rs_real_dlsym()(RTLD_NEXT, symbol); /* the library is the caller: after it */
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

/* By the order of loading: for objects that were loaded at the start it is the order of the global
 * scope. */
static bool comes_before_us(const struct link_map *object)
{
    const struct link_map *before = our_object();

    while (before && before != object)
        before = before->l_prev;
    return before != NULL;
}

/* One more reference to the object, or NULL. */
static void *open_again(const struct link_map *object)
{
    return rs_loader_is_stuck() ? NULL : dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
}

/* Looks in the local scope of the caller's object, which RTLD_NEXT from here does not search. */
static void *find_in_object(const struct link_map *object, const char *symbol)
{
    void *handle = open_again(object);
    void *found;

    if (!handle)
        return NULL;
    found = rs_real_dlsym()(handle, symbol);
    dlclose(handle); /* the object is calling, so it stays loaded */
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
    *keep = object && object != object_of(caller) && open_again(object) != NULL;
    return found;
}

bool rs_caller_comes_before_us(const void *caller)
{
    const struct link_map *object = object_of(caller);

    return object && comes_before_us(object);
}

/* By the file name: the loader may give a new object the addresses and even the record of an
 * unloaded one. */
static unsigned long long identity_of(const struct link_map *object)
{
    unsigned long long hash = 14695981039346656037u; /* FNV-1a */

    for (const char *name = object ? object->l_name : ""; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 1099511628211u;
    return object ? hash | 1 : 0;
}

#if __GLIBC_PREREQ(2, 35)
unsigned long long rs_caller_identity(const void *caller)
{
    static _Atomic(void *) found; /* looked up, not linked: glibc 2.34 does not have it */
    void *symbol = atomic_load_explicit(&found, memory_order_relaxed);
    struct dl_find_object result;
    __typeof__(_dl_find_object) *find;

    if (!symbol) {
        symbol = rs_real_dlsym()(RTLD_DEFAULT, "_dl_find_object");
        atomic_store_explicit(&found, symbol, memory_order_relaxed);
    }
    if (!symbol)
        return identity_of(object_of(caller));
    memcpy(&find, &symbol, sizeof(find));
    return find((void *)(uintptr_t)caller, &result) == 0 ? identity_of(result.dlfo_link_map) : 0;
}
#else
unsigned long long rs_caller_identity(const void *caller)
{
    return identity_of(object_of(caller));
}
#endif
