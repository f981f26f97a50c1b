/* SPDX-License-Identifier: Apache-2.0 */
#include "tool/doctor/maps.h"

#include "tool/program/program.h"

#include <stdio.h>
#include <string.h>

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* A runtime of a Python package serves that package alone; another one may be the system's. */
static bool is_bundled(const char *path)
{
    return strstr(path, "/site-packages/") || strstr(path, "/dist-packages/") ||
           strstr(path, "/torch/lib/");
}

static void note(struct doctor_maps *maps, const char *path, struct doctor *doctor)
{
    const char *name = program_base_name(path);

    if (begins(name, "librmmshim")) {
        maps->has_library = true;
        doctor_note(doctor, "library",
                    strstr(name, "(deleted)") ? "start it again to use the new file" : NULL,
                    "%s is loaded", path);
    } else if (begins(name, "libcuda.so")) {
        maps->has_driver = true;
        doctor_note(doctor, "driver", NULL, "%s is loaded", path);
    } else if (begins(name, "libcudart")) {
        doctor_note(doctor, "runtime", NULL, "%s is loaded%s", path,
                    is_bundled(path) ? ", the one of a Python package" : "");
    } else if (begins(name, "libtorch_cuda") || begins(name, "libc10_cuda")) {
        maps->has_torch = true;
        doctor_note(doctor, "framework", NULL, "%s is loaded", path);
    } else if (begins(name, "libjemalloc") || begins(name, "libtcmalloc") ||
               begins(name, "libmimalloc")) {
        doctor_note(doctor, "preload", NULL,
                    "%s is loaded: it serves host memory, and not the GPU's", path);
    }
}

/* The path in a line of the file, or NULL; a library's segments lie in lines behind each other. */
static const char *path_of(char *line)
{
    int at = 0;

    (void)sscanf(line, "%*s %*s %*s %*s %*s %n", &at);
    return at > 0 && line[at] == '/' ? line + at : NULL;
}

/* "ADDRESS-ADDRESS r-xp ..." */
static bool has_code(const char *line)
{
    const char *access = strchr(line, ' ');

    return access && strlen(access) > 3 && access[3] == 'x';
}

void doctor_maps_read(struct doctor_maps *maps, char *text, struct doctor *doctor)
{
    const char *last = "", *path;
    char *rest;

    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest)) {
        path = path_of(line);
        if (path && strcmp(path, last) != 0)
            note(maps, last = path, doctor);
        if (path && has_code(line))
            load_order_add(&maps->files, path);
    }
}
