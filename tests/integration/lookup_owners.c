/* SPDX-License-Identifier: Apache-2.0 */
/* Prints whose function a look-up gives, for every kind of handle and caller, before and after
 * libcuda is loaded, and what dlerror says.  test_lookup_owners.py runs it with and without the
 * library and compares: ours may only stand where the driver's stood.
 *
 *   lookup_owners NEXT_LIBRARY FIRST_LIBRARY SECOND_LIBRARY NAMESAKE */
#include "lookup_owners.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    "cuMemAlloc_v2", "cuMemFree_v2", "cuMemAlloc",      "cuGetProcAddress", "cuGetProcAddress_v2",
    "cuInit",        "cudaMalloc",   "cublasCreate_v2", "no_such_function", "malloc",
};

static void *find_here(void *handle, const char *name)
{
    return dlsym(handle, name);
}

static void *load(const char *path, int flags)
{
    void *handle = dlopen(path, RTLD_NOW | flags);

    if (!handle) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return handle;
}

static void say(const char *how, const char *name, void *found)
{
    char *error = dlerror(), *first = error ? strdup(error) : NULL, *again = dlerror();
    Dl_info place;

    printf("%s %s: ", how, name);
    if (!found)
        printf("nothing");
    else if (!dladdr(found, &place) || !place.dli_fname)
        printf("somewhere");
    else
        printf("%s",
               strrchr(place.dli_fname, '/') ? strrchr(place.dli_fname, '/') + 1 : place.dli_fname);
    printf(", error %s%s\n",
           !first                              ? "none"
           : strstr(first, "undefined symbol") ? strstr(first, "undefined symbol")
                                               : first,
           again ? ", said twice" : "");
    free(first);
}

static void probe(const char *state, const char *caller, void *(*find)(void *, const char *))
{
    void *program = dlopen(NULL, RTLD_NOW);
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    struct {
        const char *how;
        void *handle;
    } ways[] = {{"RTLD_DEFAULT", RTLD_DEFAULT},
                {"RTLD_NEXT", RTLD_NEXT},
                {"dlopen(NULL)", program},
                {"driver", driver}};

    (void)dlerror();
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        if (i == 3 && !driver)
            continue;
        for (size_t j = 0; j < sizeof(names) / sizeof(names[0]); j++) {
            char how[128];
            snprintf(how, sizeof(how), "%s, %s, %s", state, caller, ways[i].how);
            say(how, names[j], find(ways[i].handle, names[j]));
        }
    }
    /* An error that was there before stays the program's business. */
    (void)dlopen("no_such_library.so", RTLD_NOW);
    say(state, "after a failed dlopen", NULL);
    if (driver)
        dlclose(driver);
    dlclose(program);
}

/* By the handle of a library that has some of the names itself. */
static void probe_namesake(const char *state, void *namesake)
{
    char how[128];

    for (size_t j = 0; j < sizeof(names) / sizeof(names[0]); j++) {
        snprintf(how, sizeof(how), "%s, namesake", state);
        say(how, names[j], find_here(namesake, names[j]));
        snprintf(how, sizeof(how), "%s, namesake after a failed dlopen", state);
        (void)dlopen("no_such_library.so", RTLD_NOW);
        say(how, names[j], find_here(namesake, names[j]));
    }
}

int main(int argc, char **argv)
{
    find_function *next;
    self_function *first_self, *second_self;
    void *library, *first, *second, *namesake;

    if (argc != 5)
        return 2;
    probe("no driver", "program", find_here);

    library = load(argv[1], RTLD_LOCAL);
    *(void **)&next = dlsym(library, "lookup_next_find");
    probe("no driver", "library", next);
    namesake = load(argv[4], RTLD_LOCAL);
    probe_namesake("no driver", namesake);

    /* A library that looks its own name up finds the next one, and never itself. */
    first = load(argv[2], RTLD_GLOBAL);
    *(void **)&first_self = dlsym(first, "lookup_self");
    say("self look-up", "alone", first_self());
    second = load(argv[3], RTLD_GLOBAL);
    *(void **)&second_self = dlsym(second, "lookup_self");
    say("self look-up", "first of two", first_self());
    say("self look-up", "second of two", second_self());

    load("libcuda.so.1", RTLD_LOCAL);
    probe_namesake("local driver", namesake);
    probe("local driver", "program", find_here);
    probe("local driver", "library", next);
    load("libcuda.so.1", RTLD_GLOBAL);
    probe("global driver", "program", find_here);
    probe("global driver", "library", next);
    return 0;
}
