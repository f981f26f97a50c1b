/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/run/framework_pools.h"

#include "base/check.h"
#include "config/variables.h"
#include "tool/program.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTION "--framework-pools"

/* Variables of the frameworks that switch their pools off; values that the environment has already
 * stay. */
static const struct {
    const char *name, *value;
} variables[] = {
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "1"},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "platform"},
};

/* Folders of sitecustomize.py, relative to the directory of this command: installed, and in the
 * build tree. */
static const char *const python_places[] = {
    "../" RMMSHIM_LIBDIR "/rmmshim/framework-pools",
    "../lib/rmmshim/framework-pools",
    "../lib64/rmmshim/framework-pools",
    "framework-pools",
};

bool framework_pools_is_option(const char *text)
{
    size_t length = strlen(OPTION);

    return strncmp(text, OPTION, length) == 0 && (text[length] == '\0' || text[length] == '=');
}

static bool set(const char *name, const char *value, bool overwrite)
{
    if (setenv(name, value, overwrite) == 0)
        return true;
    tool_say("%s: %s", name, strerror(errno));
    return false;
}

static bool is_first(const char *paths, const char *path)
{
    size_t length = strlen(path);

    return strncmp(paths, path, length) == 0 && (paths[length] == '\0' || paths[length] == ':');
}

static bool prepend_python_path(const char *folder)
{
    const char *before = getenv("PYTHONPATH");
    char *joined;
    bool done;

    if (strchr(folder, ':')) {
        tool_say("%s: PYTHONPATH cannot hold a path with a colon", folder);
        return false;
    }
    if (!before || !*before)
        return set("PYTHONPATH", folder, true);
    if (is_first(before, folder))
        return true; /* it is there already, as in `rmmshim run rmmshim run` */
    if (asprintf(&joined, "%s:%s", folder, before) < 0) {
        tool_say("out of memory");
        return false;
    }
    done = set("PYTHONPATH", joined, true);
    free(joined);
    return done;
}

static bool is_off;

static bool switch_off(void)
{
    char folder[PATH_MAX];

    is_off = true;

    if (!library_find_beside(python_places, RS_ARRAY_LENGTH(python_places), folder)) {
        tool_say(OPTION ": the folder framework-pools is not beside this command");
        return false;
    }
    for (size_t i = 0; i < RS_ARRAY_LENGTH(variables); i++)
        if (!set(variables[i].name, variables[i].value, false))
            return false;
    return prepend_python_path(folder);
}

static bool is_set(enum rs_variable_index variable)
{
    const char *value = getenv(rs_variables[variable].option.name);

    return value && *value;
}

bool framework_pools_settle(void)
{
    if (!is_off || is_set(RS_VARIABLE_PINNED_POOL_SIZE) || is_set(RS_VARIABLE_PINNED_RESOURCE) ||
        is_set(RS_VARIABLE_HOOKS))
        return true;
    return set(rs_variables[RS_VARIABLE_PINNED_POOL_SIZE].option.name, "0", true);
}

bool framework_pools_take(char ***arguments)
{
    const char *value = strchr(**arguments, '=');

    value = value ? value + 1 : *++*arguments;
    if (!value) {
        --*arguments;
        tool_say(OPTION " needs a value: on or off");
        return false;
    }
    if (strcmp(value, "off") == 0)
        return switch_off();
    if (strcmp(value, "on") == 0)
        return true;
    tool_say(OPTION "=%s: expected on or off", value);
    return false;
}

void framework_pools_print_help(void)
{
    puts("\n" OPTION " on|off: off switches off the memory pools that PyTorch, CuPy and JAX keep\n"
         "themselves, so that all that they allocate is served: sets "
         "PYTORCH_NO_CUDA_MEMORY_CACHING\n"
         "and XLA_PYTHON_CLIENT_ALLOCATOR where they are not set, and puts a sitecustomize.py for\n"
         "CuPy in front of PYTHONPATH (Python's options -E, -I and -S skip it). Pinned memory then "
         "gets\n"
         "a pool too (--pinned-pool-size 0), unless a setting of pinned memory is given.");
}
