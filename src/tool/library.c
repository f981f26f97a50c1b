/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/library.h"

#include "base/check.h"
#include "tool/program/namesake.h"
#include "tool/program/program.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Relative to the directory of this command: installed, installed without a prefix, and in the
 * build tree. */
static const char *const library_places[] = {
    /* NOLINTNEXTLINE(bugprone-suspicious-missing-comma): one path of three pieces */
    "../" RMMSHIM_LIBDIR "/librmmshim.so",
    "../lib/librmmshim.so",
    "../lib64/librmmshim.so",
    "librmmshim.so",
    "../hook/librmmshim.so",
};

/* ---- the library ---- */

static bool own_directory(char path[PATH_MAX])
{
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    char *slash;

    if (length <= 0)
        return false;
    path[length] = '\0';
    slash = strrchr(path, '/');
    if (!slash)
        return false;
    *slash = '\0';
    return true;
}

bool library_find_beside(const char *const *places, size_t count, char path[PATH_MAX])
{
    char directory[PATH_MAX], candidate[2 * PATH_MAX];

    if (!own_directory(directory))
        return false;
    for (size_t i = 0; i < count; i++) {
        snprintf(candidate, sizeof(candidate), "%s/%s", directory, places[i]);
        if (realpath(candidate, path))
            return true;
    }
    return false;
}

bool library_look(char path[PATH_MAX], char why[LIBRARY_WHY_BYTES])
{
    const char *given = getenv("RMMSHIM_LIBRARY");

    if (given && *given) {
        if (realpath(given, path))
            return true;
        snprintf(why, LIBRARY_WHY_BYTES, "RMMSHIM_LIBRARY=%s: %s", given, strerror(errno));
        return false;
    }
    if (library_find_beside(library_places, RS_ARRAY_LENGTH(library_places), path))
        return true;
    snprintf(why, LIBRARY_WHY_BYTES,
             "librmmshim.so is not beside this command; set RMMSHIM_LIBRARY to its path");
    return false;
}

bool library_find(char path[PATH_MAX])
{
    char why[LIBRARY_WHY_BYTES];

    if (library_look(path, why))
        return true;
    tool_say("%s", why);
    return false;
}

/* Names the one library that NVTX hands its calls to, in a process of 64 bits. */
#define NVTX_VARIABLE "NVTX_INJECTION64_PATH"

static bool set_preload(const char *value)
{
    if (setenv("LD_PRELOAD", value, 1) == 0)
        return true;
    tool_say("LD_PRELOAD: %s", strerror(errno));
    return false;
}

bool library_preload(const char *path)
{
    const char *before = getenv("LD_PRELOAD");
    size_t length = strlen(path);
    char *joined;
    bool done;

    if (strpbrk(path, ": ")) {
        tool_say("%s: LD_PRELOAD cannot hold a path with a blank or a colon", path);
        return false;
    }
    if (!before || !*before)
        return set_preload(path);
    if (strncmp(before, path, length) == 0 && strchr(": ", before[length]))
        return true; /* it is there already, as in `rmmshim run rmmshim run` */
    if (asprintf(&joined, "%s:%s", path, before) < 0) {
        tool_say("out of memory");
        return false;
    }
    done = set_preload(joined);
    free(joined);
    return done;
}

bool library_inject_nvtx(const char *path)
{
    const char *before = getenv(NVTX_VARIABLE);

    if (before && *before && strcmp(before, path) != 0) {
        tool_say(NVTX_VARIABLE
                 "=%s: NVTX ranges go to that tool, so that RMM_PHASES=nvtx sees none",
                 before);
        return true;
    }
    if (setenv(NVTX_VARIABLE, path, 1) == 0)
        return true;
    tool_say(NVTX_VARIABLE ": %s", strerror(errno));
    return false;
}

/* ---- the program ---- */

/* The library says the same to the runtime (hook/sanitizer.c), which does not ask it where the
 * program has options of its own.  The last option given counts. */
static bool let_asan_start(void)
{
    static const char any_order[] = "verify_asan_link_order";
    const char *before = getenv("ASAN_OPTIONS");
    char *joined;
    bool done;

    if (before && strstr(before, any_order))
        return true;
    if (asprintf(&joined, "%s%s%s=0", before ? before : "", before && *before ? ":" : "",
                 any_order) < 0) {
        tool_say("out of memory");
        return false;
    }
    done = setenv("ASAN_OPTIONS", joined, 1) == 0;
    if (!done)
        tool_say("ASAN_OPTIONS: %s", strerror(errno));
    free(joined);
    return done;
}

int library_check_program(const char *library, const char *program)
{
    struct program_refusal refusal;
    char path[PATH_MAX], meant[PATH_MAX];
    int failed = program_find(program, path);

    if (failed) {
        const char *why = failed == ENOENT ? "not found" : strerror(failed);
        if (program_meant(program, meant))
            tool_say("%s: %s; did you mean 'rmmshim run %s'?", program, why, meant);
        else
            tool_say("%s: %s", program, why);
        return failed == ENOENT ? TOOL_RUN_NOT_FOUND : TOOL_RUN_NOT_EXECUTABLE;
    }
    if (program_loads(library, path, &refusal))
        return program_needs_asan(path) && !let_asan_start() ? TOOL_RUN_FAILED : 0;
    tool_say("%s", refusal.why);
    return TOOL_RUN_FAILED;
}

/* Puts the object in front of LD_PRELOAD.  False, and nothing is changed, where a program that does
 * not need the object could not load it: it may be a child of this one. */
static bool preload_first(const char *path)
{
    const char *preloaded = getenv("LD_PRELOAD");
    char *before = strdup(preloaded ? preloaded : ""), own[PATH_MAX];
    struct load_order order;
    bool done;

    done = before && realpath("/proc/self/exe", own) && !strpbrk(path, ": ") &&
           library_preload(path) && load_order_read(own, environ, &order);
    if (done) {
        done = order.missing == 0;
        load_order_free(&order);
    }
    if (!done && before)
        (void)set_preload(before);
    free(before);
    return done;
}

static void make_way(void *data, const char *path, const struct namesake *found)
{
    (void)data;
    tool_say("%s has %u variable%s with names of the driver's functions (%s): %s", path,
             found->count, found->count == 1 ? "" : "s", found->names,
             preload_first(path) ? "it is loaded before librmmshim.so, in child processes too"
                                 : "librmmshim.so takes their place, and the program will crash");
}

void library_make_way(const char *library, const char *program)
{
    char path[PATH_MAX], runner[PATH_MAX];
    struct load_order order;

    if (program_find(program, path) != 0)
        return;
    if (load_order_read(program_find_runner(path, runner) ? runner : path, environ, &order))
        namesake_find(library, &order, make_way, NULL);
    load_order_free(&order);
}
