/* SPDX-License-Identifier: Apache-2.0 */
/* Look-up routing: preloaded, every way of finding a driver function gives our entry for a hooked
 * one and the driver's own answer, status and error for everything else.
 *
 *   test_lookup EXPORTS [MISSING]...
 *
 * EXPORTS is the host-memory driver's list of exports.  MISSING names are withheld from this driver
 * (HOSTCUDA_WITHHOLD), so they must not be found.  The truth is asked for behind our back: dlvsym
 * is not hooked and gives libc's own dlsym. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEGACY = CU_GET_PROC_ADDRESS_LEGACY_STREAM };
enum { PER_THREAD = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM };
enum { NEWEST = 1 << 30 };

static const struct hook {
    const char *symbol, *name;
    int since, until, stream;
} hooks[] = {
#define HOOK(symbol, name, since, until, stream, group, summary)                                   \
    {#symbol, #name, since, until, stream},
#define RETRY(symbol, name, since, until, stream, ...)  {#symbol, #name, since, until, stream},
#define NAME(symbol, name, since, until, stream, group) {#symbol, #name, since, until, stream},
#include "driver/entry_points.def"
};

enum { HOOKS = sizeof(hooks) / sizeof(hooks[0]), EXPORTS_MAX = 2000 };

typedef CUresult (*get_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_v2)(const char *, void **, int, cuuint64_t,
                           CUdriverProcAddressQueryResult *);

static struct {
    char symbol[96], base[96];
} exports[EXPORTS_MAX];
static unsigned export_count;

static void *(*libc_dlsym)(void *, const char *);
static void *driver; /* handle of libcuda.so.1 */
static void *shim;   /* handle of librmmshim.so */
static unsigned checks, failures;
static unsigned ours_seen; /* answers that were ours: a test that saw none proves nothing */

static bool check(bool condition, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool check(bool condition, const char *format, ...)
{
    va_list arguments;

    checks++;
    if (condition)
        return true;
    if (++failures <= 30) {
        printf("FAILED: ");
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
        printf("\n");
    }
    return false;
}

static void read_exports(const char *path)
{
    FILE *file = fopen(path, "r");
    char line[256];

    if (!file) {
        perror(path);
        exit(2);
    }
    while (fgets(line, sizeof(line), file)) {
        if (line[0] == '#' || export_count == EXPORTS_MAX)
            continue;
        if (sscanf(line, "%95s %95s", exports[export_count].symbol, exports[export_count].base) ==
            2)
            export_count++;
    }
    fclose(file);
}

static const struct hook *hook_of(const char *symbol)
{
    for (unsigned i = 0; i < HOOKS; i++)
        if (!strcmp(hooks[i].symbol, symbol))
            return &hooks[i];
    return NULL;
}

static bool is_in_shim(const void *address)
{
    Dl_info found, own;

    return dladdr(address, &found) && dladdr(libc_dlsym(shim, "rmmshim_version"), &own) &&
           found.dli_fbase == own.dli_fbase;
}

/* The library's own function, which it may not export: then look-ups alone find it. */
static void *ours_named(const char *symbol)
{
    void *exported = libc_dlsym(shim, symbol);

    return exported ? exported : dlsym(driver, symbol);
}

/* What the program is to get where the driver says `real`. */
static void *ours_for(void *real)
{
    static struct {
        void *real, *ours;
    } table[HOOKS];
    static unsigned count;

    if (!count) {
        for (unsigned i = 0; i < HOOKS; i++) {
            table[i].real = libc_dlsym(driver, hooks[i].symbol);
            table[i].ours = ours_named(hooks[i].symbol);
            check(!table[i].real || is_in_shim(table[i].ours), "%s is not the library's",
                  hooks[i].symbol);
            check(table[i].ours != table[i].real, "%s of the library is the driver's",
                  hooks[i].symbol);
        }
        count = HOOKS;
    }
    for (unsigned i = 0; real && i < count; i++)
        if (table[i].real == real)
            return table[i].ours;
    return real;
}

/* dlsym on the driver's handle, for all that a driver of any version exports. */
static void looks_up_by_handle(void)
{
    for (unsigned i = 0; i < export_count; i++) {
        const char *symbol = exports[i].symbol;
        void *real = libc_dlsym(driver, symbol);
        char *error = dlerror(), *real_error = error ? strdup(error) : NULL;
        void *got = dlsym(driver, symbol);

        error = dlerror();
        check(got == ours_for(real), "dlsym(driver, %s) is %s", symbol,
              got == real ? "the driver's, not ours" : "neither the driver's nor ours");
        check(!error == !real_error && (!error || !strcmp(error, real_error)),
              "dlsym(driver, %s): dlerror says '%s', not '%s'", symbol, error ? error : "nothing",
              real_error ? real_error : "nothing");
        if (real && hook_of(symbol))
            check(is_in_shim(got), "dlsym(driver, %s) is not ours", symbol);
        ours_seen += got != real;
        free(real_error);
    }
}

/* The same for an answer of cuGetProcAddress.  A driver with HOSTCUDA_INNER answers an address
 * whose second word is the exported function's. */
static void *ours_for_answer(void *real)
{
    void *exported = real, *ours;

    if (real && getenv("HOSTCUDA_INNER"))
        memcpy(&exported, (char *)real + sizeof(void *), sizeof(exported));
    ours = ours_for(exported);
    return ours == exported ? real : ours;
}

/* One question to both; everything that comes back must agree. */
static void asks(const char *how, get_v1 v1, get_v1 real_v1, get_v2 v2, get_v2 real_v2,
                 const char *name, int version, cuuint64_t flags)
{
    int untouched;
    void *got = &untouched, *real = &untouched;
    CUresult result, real_result;

    if (v1) {
        real_result = real_v1(name, &real, version, flags);
        result = v1(name, &got, version, flags);
        check(result == real_result, "%s v1(%s, %d, %d) = %d, the driver says %d", how, name,
              version, (int)flags, (int)result, (int)real_result);
        check(got == (real == &untouched ? real : ours_for_answer(real)), "%s v1(%s, %d, %d) is %s",
              how, name, version, (int)flags,
              got == real ? "the driver's, not ours" : "a wrong address");
        ours_seen += got != real;
    }
    if (v2) {
        CUdriverProcAddressQueryResult status = 77, real_status = 77;
        got = real = &untouched;
        real_result = real_v2(name, &real, version, flags, &real_status);
        result = v2(name, &got, version, flags, &status);
        check(result == real_result && status == real_status,
              "%s v2(%s, %d, %d) = %d, status %d; the driver says %d, %d", how, name, version,
              (int)flags, (int)result, (int)status, (int)real_result, (int)real_status);
        check(got == (real == &untouched ? real : ours_for_answer(real)), "%s v2(%s, %d, %d) is %s",
              how, name, version, (int)flags,
              got == real ? "the driver's, not ours" : "a wrong address");
        ours_seen += got != real;
        got = &untouched;
        check(v2(name, &got, version, flags, NULL) == real_result &&
                  got == (real == &untouched ? real : ours_for_answer(real)),
              "%s v2(%s, %d, %d) without a status differs", how, name, version, (int)flags);
    }
}

static void looks_up_by_name(const char *how, get_v1 v1, get_v1 real_v1, get_v2 v2, get_v2 real_v2)
{
    static const int versions[] = {0,     -1,    2000,  3000,  3010,  3020,  4000,  4010,  6000,
                                   7000,  9000,  10000, 10020, 11000, 11020, 11030, 11040, 12000,
                                   12020, 12050, 12080, 13000, 13010, 99000, 99010};
    static const int few_versions[] = {2000, 11040, 12020, 13000, 99000};
    static const char *const unknown[] = {
        "",           "cu",           "cuMemAlloc_v2", "cuMemAlloc_v3",
        "cudaMalloc", "cuNoSuchCall", "malloc",        "dlsym"};

    for (cuuint64_t flags = 0; flags <= 4; flags++) {
        for (unsigned i = 0; i < HOOKS; i++)
            for (unsigned j = 0; j < sizeof(versions) / sizeof(versions[0]); j++)
                asks(how, v1, real_v1, v2, real_v2, hooks[i].name, versions[j], flags);
        for (unsigned i = 0; i < export_count; i++)
            for (unsigned j = 0; j < sizeof(few_versions) / sizeof(few_versions[0]); j++)
                asks(how, v1, real_v1, v2, real_v2, exports[i].base, few_versions[j], flags);
        for (unsigned i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
            asks(how, v1, real_v1, v2, real_v2, unknown[i], 12000, flags);
    }

    /* missing outputs and names */
    if (v1)
        check(v1("cuMemAlloc", NULL, 11040, 0) == real_v1("cuMemAlloc", NULL, 11040, 0),
              "%s v1 without an output differs", how);
    if (v2) {
        CUdriverProcAddressQueryResult status = 77, real_status = 77;
        void *got = NULL;
        check(v2("cuMemAlloc", NULL, 11040, 0, &status) ==
                      real_v2("cuMemAlloc", NULL, 11040, 0, &real_status) &&
                  status == real_status,
              "%s v2 without an output differs", how);
        check(v2(NULL, &got, 11040, 0, &status) == real_v2(NULL, &got, 11040, 0, &real_status),
              "%s v2 without a name differs", how);
    }
}

/* The table of entry points says what a name means at a version; the driver must agree. */
static void the_table_is_right(get_v1 v1, get_v2 v2, int driver_version)
{
    for (unsigned i = 0; i < HOOKS; i++) {
        const struct hook *hook = &hooks[i];
        void *real = libc_dlsym(driver, hook->symbol), *got = NULL;
        int last = hook->until > driver_version ? driver_version : hook->until - 1;

        if (!real || hook->since > driver_version)
            continue;
        for (int end = 0; end < 2; end++) {
            int version = end ? last : hook->since;
            cuuint64_t flags = (cuuint64_t)hook->stream;
            if (v2)
                v2(hook->name, &got, version, flags, NULL);
            else
                v1(hook->name, &got, version, flags);
            check(got == ours_named(hook->symbol), "%s at %d is not our %s", hook->name, version,
                  hook->symbol);
            if (hook->stream != LEGACY)
                continue;
            if (v2)
                v2(hook->name, &got, version, 0, NULL);
            else
                v1(hook->name, &got, version, 0);
            check(got == ours_named(hook->symbol), "%s at %d without a flag is not our %s",
                  hook->name, version, hook->symbol);
        }
    }
}

int main(int argc, char **argv)
{
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    CUresult (*get_version)(int *);
    get_v1 v1, real_v1, again_v1 = NULL;
    get_v2 v2, real_v2, again_v2 = NULL;
    Dl_info place;
    void *dlsym_here = NULL, *dlvsym_here = NULL;
    int driver_version = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: test_lookup EXPORTS [MISSING]...\n");
        return 2;
    }
    read_exports(argv[1]);
    for (unsigned i = 0; !libc_dlsym && i < sizeof(versions) / sizeof(versions[0]); i++)
        *(void **)&libc_dlsym = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    if (!libc_dlsym) {
        printf("no dlsym of libc\n");
        return 2;
    }
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        printf("%s\n", dlerror());
        return 2;
    }

    /* dlvsym stays libc's, and so stays a way around us. */
    *(__typeof__(&dlvsym) *)&dlvsym_here = dlvsym;
    check(dladdr(dlvsym_here, &place) && !strstr(place.dli_fname, "librmmshim"), "dlvsym is ours");

    /* The preloaded library is the one that gives us dlsym. */
    *(__typeof__(&dlsym) *)&dlsym_here = dlsym;
    if (!dladdr(dlsym_here, &place) || !strstr(place.dli_fname, "librmmshim.so")) {
        printf("FAILED: dlsym is that of %s: nothing is preloaded\n", place.dli_fname);
        return 1;
    }
    shim = dlopen(place.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (!shim) {
        printf("%s\n", dlerror());
        return 2;
    }

    looks_up_by_handle();
    for (int i = 2; i < argc; i++) {
        check(libc_dlsym(driver, argv[i]) == NULL, "%s is not withheld", argv[i]);
        check(dlsym(driver, argv[i]) == NULL, "dlsym(driver, %s) is not NULL", argv[i]);
    }

    *(void **)&v1 = dlsym(driver, "cuGetProcAddress");
    *(void **)&v2 = dlsym(driver, "cuGetProcAddress_v2");
    *(void **)&real_v1 = libc_dlsym(driver, "cuGetProcAddress");
    *(void **)&real_v2 = libc_dlsym(driver, "cuGetProcAddress_v2");
    *(void **)&get_version = libc_dlsym(driver, "cuDriverGetVersion");
    (void)dlerror();
    get_version(&driver_version);
    if (v1 || v2) {
        looks_up_by_name("found by dlsym,", v1, real_v1, v2, real_v2);
        the_table_is_right(v1, v2, driver_version);
        /* It finds itself, and what it finds works as well. */
        if (v2) {
            v2("cuGetProcAddress", (void **)&again_v2, 12000, 0, NULL);
            v2("cuGetProcAddress", (void **)&again_v1, 11040, 0, NULL);
        } else {
            v1("cuGetProcAddress", (void **)&again_v1, 11040, 0);
        }
        check(again_v1 == v1 && (!again_v2 || again_v2 == v2),
              "cuGetProcAddress finds another one");
        looks_up_by_name("exported,", (get_v1)libc_dlsym(shim, "cuGetProcAddress"), real_v1,
                         real_v2 ? (get_v2)libc_dlsym(shim, "cuGetProcAddress_v2") : NULL, real_v2);
    }

    /* Once the driver is in the global scope, everybody finds it there. */
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    for (unsigned i = 0; i < HOOKS; i++) {
        const char *symbol = hooks[i].symbol;
        void *ours = libc_dlsym(driver, symbol) ? ours_named(symbol) : NULL;
        void *program = dlopen(NULL, RTLD_NOW);

        check(dlsym(RTLD_DEFAULT, symbol) == ours, "dlsym(RTLD_DEFAULT, %s) is not ours", symbol);
        check(dlsym(RTLD_NEXT, symbol) == ours, "dlsym(RTLD_NEXT, %s) is not ours", symbol);
        check(dlsym(program, symbol) == ours, "dlsym(dlopen(NULL), %s) is not ours", symbol);
        dlclose(program);
    }
    check(ours_seen > 0, "no answer was ours");

    printf("driver %d: %u checks, %u answers were ours, %u failures\n", driver_version, checks,
           ours_seen, failures);
    return failures != 0;
}
