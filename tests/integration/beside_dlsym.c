/* SPDX-License-Identifier: Apache-2.0 */
/* Another preloaded library that hooks dlsym, as tools do: it counts look-ups of driver functions
 * and answers cuMemGetInfo_v2 with a function of its own, which calls the one it was given.  Writes
 * its counts to the file BESIDE_COUNTS. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static unsigned look_ups, calls;
static CUresult (*given)(size_t *, size_t *);

static CUresult information(size_t *free_bytes, size_t *total_bytes)
{
    calls++;
    return given(free_bytes, total_bytes);
}

__attribute__((visibility("default"))) void *dlsym(void *restrict handle, const char *restrict name)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    static void *(*next)(void *, const char *);
    CUresult (*answer)(size_t *, size_t *) = information;
    void *found;

    /* Whoever hooks dlsym after us comes first; an unversioned definition answers any version. */
    for (unsigned i = 0; !next && i < sizeof(versions) / sizeof(versions[0]); i++)
        *(void **)&next = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    found = next(handle, name);
    if (!found || strncmp(name, "cu", 2) != 0)
        return found;
    look_ups++;
    if (strcmp(name, "cuMemGetInfo_v2") == 0) {
        *(void **)&given = found;
        memcpy(&found, &answer, sizeof(found));
    }
    return found;
}

__attribute__((destructor)) static void write_counts(void)
{
    const char *path = getenv("BESIDE_COUNTS");
    FILE *file = path ? fopen(path, "a") : NULL;

    if (!file)
        return;
    fprintf(file, "dlsym %u %u\n", look_ups, calls);
    fclose(file);
}
