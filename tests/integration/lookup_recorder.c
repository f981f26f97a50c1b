/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded before rmmshim: stands between a program and rmmshim's look-ups and notes what came
 * back, each beside the driver's own answer.  Writes one line for each look-up to the file
 * LOOKUP_RECORD: how, name, version, flags, result, the object and symbol that was given, and the
 * driver's own symbol. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef CUresult (*get_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_v2)(const char *, void **, int, cuuint64_t,
                           CUdriverProcAddressQueryResult *);

static void *(*libc_dlsym)(void *, const char *);
static void *(*next_dlsym)(void *, const char *);
static get_v1 given_v1, real_v1;
static get_v2 given_v2, real_v2;

__attribute__((visibility("default"))) void *dlsym(void *restrict handle,
                                                   const char *restrict name);

static void prepare(void)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    const char *shim = getenv("LOOKUP_SHIM");
    void *handle;

    for (unsigned i = 0; !libc_dlsym && i < sizeof(versions) / sizeof(versions[0]); i++)
        *(void **)&libc_dlsym = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    handle = shim && *shim ? dlopen(shim, RTLD_NOW | RTLD_NOLOAD) : NULL;
    next_dlsym = libc_dlsym;
    if (handle)
        *(void **)&next_dlsym = libc_dlsym(handle, "dlsym");
}

static const char *object_of(void *address)
{
    Dl_info place;

    if (!address)
        return "nothing";
    if (!dladdr(address, &place) || !place.dli_fname)
        return "unknown";
    return strrchr(place.dli_fname, '/') ? strrchr(place.dli_fname, '/') + 1 : place.dli_fname;
}

static const char *symbol_of(void *address)
{
    Dl_info place;

    if (!address || !dladdr(address, &place) || !place.dli_sname)
        return "-";
    return place.dli_sname;
}

static void record(const char *how, const char *name, int version, int flags, int result,
                   void *given, void *real)
{
    const char *path = getenv("LOOKUP_RECORD");
    FILE *file = path ? fopen(path, "a") : NULL;

    if (!file)
        return;
    fprintf(file, "%s %s %d %d %d %s %s %s\n", how, *name ? name : "(empty)", version, flags,
            result, object_of(given), symbol_of(given), symbol_of(real));
    fclose(file);
}

/* NVIDIA's runtime goes on to look for all its functions only when it finds the driver's private
 * tables; it gets empty ones here, and later refuses to work with them. */
static CUresult nothing(void)
{
    return CUDA_SUCCESS;
}

static CUresult empty_table(const void **table, const CUuuid *id)
{
    enum { ENTRIES = 64 };
    static const void *entries[ENTRIES];
    CUresult (*const function)(void) = nothing;

    (void)id;
    entries[0] = (const void *)sizeof(entries);
    for (int i = 1; i < ENTRIES; i++)
        memcpy(&entries[i], &function, sizeof(function));
    *table = entries;
    return CUDA_SUCCESS;
}

static void *recorded(const char *name, void *given, void *real);

static CUresult recorded_v2(const char *name, void **out, int version, cuuint64_t flags,
                            CUdriverProcAddressQueryResult *status)
{
    void *real = NULL;
    CUresult result = given_v2(name, out, version, flags, status);

    real_v2(name, &real, version, flags, NULL);
    record("cuGetProcAddress_v2", name, version, (int)flags, (int)result, out ? *out : NULL, real);
    if (result == CUDA_SUCCESS && *out)
        *out = recorded(symbol_of(real), *out, real);
    return result;
}

static CUresult recorded_v1(const char *name, void **out, int version, cuuint64_t flags)
{
    void *real = NULL;
    CUresult result = given_v1(name, out, version, flags);

    real_v1(name, &real, version, flags);
    record("cuGetProcAddress", name, version, (int)flags, (int)result, out ? *out : NULL, real);
    if (result == CUDA_SUCCESS && *out)
        *out = recorded(symbol_of(real), *out, real);
    return result;
}

/* What the program gets: for a look-up function one that goes on recording. */
static void *recorded(const char *symbol, void *given, void *real)
{
    if (strcmp(symbol, "cuGetProcAddress_v2") == 0) {
        *(void **)&given_v2 = given;
        *(void **)&real_v2 = real;
        *(get_v2 *)&given = recorded_v2;
    } else if (strcmp(symbol, "cuGetProcAddress") == 0) {
        *(void **)&given_v1 = given;
        *(void **)&real_v1 = real;
        *(get_v1 *)&given = recorded_v1;
    } else if (strcmp(symbol, "cuGetExportTable") == 0) {
        *(CUresult(**)(const void **, const CUuuid *)) & given = empty_table;
    }
    return given;
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    void *found;

    if (!next_dlsym)
        prepare();
    found = next_dlsym(handle, name);
    if (strncmp(name, "cu", 2) != 0 || handle == RTLD_DEFAULT || handle == RTLD_NEXT)
        return found;
    record("dlsym", name, 0, 0, 0, found, libc_dlsym(handle, name));
    return found ? recorded(name, found, libc_dlsym(handle, name)) : NULL;
}
