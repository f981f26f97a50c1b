/* SPDX-License-Identifier: Apache-2.0 */
/* A program without CUDA that loads libraries which use it, RTLD_LOCAL, as Python does.
 *
 *   door_host use LIBRARY...       each in turn
 *   door_host errors LIBRARY...    a failure in one is no error of another's runtime
 *   door_host reload LIBRARY...    each loaded, used and unloaded, many times
 *   door_host devices LIBRARY...   each in turn on two devices
 *   door_host cross LIBRARY...     what one allocated the next one frees
 *   door_host keep LIBRARY...      unloaded with blocks, which its destructor frees
 *
 * DOOR_LOAD=deepbind or namespace: they bind past what is preloaded (RTLD_DEEPBIND, dlmopen). */
#include "door_user.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIBRARIES_MAX = 8, RELOADS = 5 };

static void *load(const char *path)
{
    const char *how = getenv("DOOR_LOAD");
    bool deep = how && !strcmp(how, "deepbind"), apart = how && !strcmp(how, "namespace");
    void *handle = apart ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW | RTLD_LOCAL)
                         : dlopen(path, RTLD_NOW | RTLD_LOCAL | (deep ? RTLD_DEEPBIND : 0));

    if (!handle) {
        printf("%s\n", dlerror());
        exit(2);
    }
    return handle;
}

static const char *short_name(const char *path)
{
    return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

static int call(void *handle, const char *function, const char *path)
{
    door_function *found;

    *(void **)&found = dlsym(handle, function);
    return found(short_name(path));
}

int main(int argc, char **argv)
{
    void *handles[LIBRARIES_MAX];
    int failed = 0, count = argc - 2;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count < 1 || count > LIBRARIES_MAX)
        return 2;
    if (!strcmp(argv[1], "reload")) {
        for (int i = 0; i < RELOADS * count; i++) {
            void *handle = load(argv[2 + i % count]);
            failed |= call(handle, "door_use", argv[2 + i % count]);
            dlclose(handle);
        }
        return failed;
    }
    for (int round = 0; !strcmp(argv[1], "keep") && round < 2; round++)
        for (int i = 0; i < count; i++) {
            void *handle = load(argv[2 + i]);
            failed |= call(handle, "door_keep", argv[2 + i]);
            if (round == 0)
                dlclose(handle);
        }
    for (int i = 0; i < count; i++)
        handles[i] = load(argv[2 + i]);
    if (!strcmp(argv[1], "devices"))
        for (int i = 0; i < 2 * count; i++)
            failed |= call(handles[i % count], "door_devices", argv[2 + i % count]);
    if (!strcmp(argv[1], "cross"))
        for (int i = 0; i < count; i++) {
            void *(*make)(void);
            int (*release)(const char *name, void *block);
            *(void **)&make = dlsym(handles[i], "door_make");
            *(void **)&release = dlsym(handles[(i + 1) % count], "door_free");
            failed |= release(short_name(argv[2 + (i + 1) % count]), make());
        }
    if (!strcmp(argv[1], "use"))
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < count; i++)
                failed |= call(handles[i], "door_use", argv[2 + i]);
    if (!strcmp(argv[1], "errors"))
        for (int i = 0; i < count; i++) {
            failed |= call(handles[i], "door_fail", argv[2 + i]);
            for (int j = 0; j < count; j++)
                failed |= call(handles[(i + 1 + j) % count], "door_last_error",
                               argv[2 + (i + 1 + j) % count]);
        }
    return failed;
}
