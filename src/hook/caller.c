/* SPDX-License-Identifier: Apache-2.0 */
#include "hook/caller.h"

#include "config/mode.h"
#include "driver/driver.h"
#include "trace/object.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void *rs_caller_next(const char *symbol)
{
    /* RTLD_NEXT searches behind the object that calls dlsym, which is the library here. */
    return rs_real_dlsym()(RTLD_NEXT, symbol);
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

/* True when the object was loaded before the library. For objects loaded at the program's start the
 * order of loading is that of the global scope. */
static bool comes_before_us(const struct link_map *object)
{
    const struct link_map *before = our_object();

    while (before && before != object)
        before = before->l_prev;
    return before != NULL;
}

/* Takes one more reference to the object; NULL on failure. */
static void *open_again(const struct link_map *object)
{
    return rs_loader_is_stuck() ? NULL : dlopen(object->l_name, RTLD_LAZY | RTLD_NOLOAD);
}

/* Looks the symbol up in the object and its dependencies, which RTLD_NEXT searches only if they are
 * in the global scope. Returns NULL if the symbol is not there, or is the library's own. */
static void *find_in_object(const struct link_map *object, const char *symbol)
{
    void *handle = open_again(object);
    void *found;

    if (!handle)
        return NULL;
    found = rs_real_dlsym()(handle, symbol);
    dlclose(handle); /* a caller's object stays loaded, since its code is running */
    return found && object_of(found) != our_object() ? found : NULL;
}

/* ---- the runtime that was loaded first ---- */

struct nth {
    unsigned left;
    const void *inside; /* an address in the object */
};

static int see_nth(struct dl_phdr_info *info, size_t bytes, void *data)
{
    struct nth *nth = data;

    (void)bytes;
    if (nth->left-- > 0)
        return 0;
    for (unsigned i = 0; i < info->dlpi_phnum && !nth->inside; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD)
            nth->inside = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return 1;
}

/* Returns a reference to the object that defines the symbol, even if it is not in the global scope.
 * If several define it, takes the one loaded first. Returns NULL when there is none. Each turn of
 * the loop asks the loader for one object, since no look-up may be made while the loader goes
 * through its list. */
static RS_COLD void *open_first(const char *symbol)
{
    struct nth nth = {0, NULL};
    const struct link_map *object;
    void *found = NULL;

    for (unsigned i = 0; !found && (nth = (struct nth){i, NULL}, dl_iterate_phdr(see_nth, &nth));
         i++) {
        object = object_of(nth.inside);
        if (object && *object->l_name) /* skips the main program, whose scope is the global one */
            found = find_in_object(object, symbol);
    }
    /* Another thread may have unloaded the object since, as only the caller's own is sure to stay.
     */
    object = found ? object_of(found) : NULL;
    return object ? open_again(object) : NULL;
}

/* Finds the definition for a caller that is linked with no runtime: code that the program
 * generated, or a library that was given a pointer to the function. The reference to the first
 * runtime is never given back, so that the calls of all such callers go to one runtime. */
static RS_COLD void *find_in_first(const char *symbol)
{
    static _Atomic(void *) first;
    void *handle = atomic_load(&first), *none = NULL;

    if (!handle) {
        handle = open_first(symbol);
        if (!handle)
            return NULL;
        if (!atomic_compare_exchange_strong(&first, &none, handle)) {
            dlclose(handle); /* another thread has stored its reference first */
            handle = none;
        }
    }
    return rs_real_dlsym()(handle, symbol);
}

void *rs_caller_find(const void *caller, const char *symbol)
{
    const struct link_map *object = object_of(caller);
    void *found = NULL;

    if (object && !comes_before_us(object))
        found = find_in_object(object, symbol);
    if (!found)
        found = rs_caller_next(symbol);
    return found;
}

void *rs_caller_find_runtime(const void *caller, const char *symbol)
{
    void *found = rs_caller_find(caller, symbol);

    return found ? found : find_in_first(symbol);
}

void *rs_caller_find_to_keep(const void *caller, const char *symbol, bool *keep)
{
    void *found = rs_caller_find_runtime(caller, symbol);
    const struct link_map *object = found ? object_of(found) : NULL;

    /* The reference that open_again takes is never given back, so the object stays loaded. */
    *keep = object && object != object_of(caller) && open_again(object) != NULL;
    return found;
}

bool rs_caller_comes_before_us(const void *caller)
{
    const struct link_map *object = object_of(caller);

    return object && comes_before_us(object);
}

static bool is_libcuda(const char *path)
{
    const char *slash = strrchr(path, '/');

    return strncmp(slash ? slash + 1 : path, "libcuda.so", strlen("libcuda.so")) == 0;
}

const char *rs_caller_driver_before_us(void)
{
    const struct link_map *before = our_object();

    while (before && !is_libcuda(before->l_name))
        before = before->l_prev;
    return before ? before->l_name : NULL;
}

/* ---- who asks for memory ---- */

/* Finds the object of a caller that is not in the thread's cache. In a forked child, which does not
 * serve, it returns before it takes a lock: another thread may have held the lock at the fork. */
RS_COLD unsigned rs_caller_object_slowly(const void *caller)
{
    struct rs_recent_caller *recent = &rs_thread.callers[rs_caller_slot(caller)];

    if (rs_thread.forwarding_for || rs_mode_now() != RS_MODE_SERVE)
        return rs_thread.forwarding_for;
    *recent = (struct rs_recent_caller){caller, (uint16_t)rs_object_of_caller(caller)};
    return recent->object;
}

/* Empties the thread's cache of callers, so that the runtime's calls to the driver are looked up
 * anew and count as the object's. */
unsigned rs_caller_forward_begin(unsigned object)
{
    unsigned before = rs_thread.forwarding_for;

    memset(rs_thread.callers, 0, sizeof(rs_thread.callers));
    rs_thread.forwarding_for = object;
    return before;
}

void rs_caller_forward_end(unsigned before)
{
    rs_thread.forwarding_for = before;
}
