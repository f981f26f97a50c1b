/* SPDX-License-Identifier: Apache-2.0 */
/* A library that finds the driver's functions by itself, and keeps them in variables with their
 * names, as wranglers do; and two programs that use it.
 *
 *   WRANGLER         the library; with OLD_NAMES its variables have names of old CUDA versions
 * alone WRANGLER_OPENED  a program that opens the library that it is given as a plug-in; else
 * linked */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef WRANGLER
#ifdef OLD_NAMES
#define NAMES(X)                                                                                   \
    X(cuCtxCreate) X(cuCtxDestroy) X(cuGraphInstantiate) X(cuMemHostRegister) X(cuStreamDestroy)
#else
#define NAMES(X)                                                                                   \
    X(cuInit)                                                                                      \
    X(cuDeviceGet)                                                                                 \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuCtxSetCurrent) X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemGetInfo_v2) X(cuStreamCreate)
#endif
#define VARIABLE(name) int (*name)();
NAMES(VARIABLE)

static void find(void *driver, const char *name, void *variable)
{
    void **address = variable;

    *address = dlsym(driver, name);
    if (!*address) {
        printf("no %s\n", name);
        exit(1);
    }
}

int wrangle(void);

int wrangle(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;
    unsigned long long address = 0;
    int device, result;

    if (!driver)
        return 1;
#define FIND(name) find(driver, #name, &name);
    NAMES(FIND)
#ifdef OLD_NAMES
    (void)context, (void)device, (void)result;
    printf("found %d\n", cuStreamDestroy != NULL);
    return address != 0;
#else
    if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
        cuCtxSetCurrent(context))
        return 2;
    result = cuMemAlloc_v2(&address, (size_t)1 << 20);
    printf("allocated with %d\n", result);
    return result ? result : cuMemFree_v2(address);
#endif
}
#elif defined(WRANGLER_OPENED)
int main(int count, char **words)
{
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    int (*wrangle)(void) = NULL;

    if (library)
        *(void **)&wrangle = dlsym(library, "wrangle");
    return wrangle ? wrangle() : 3;
}
#else
extern int wrangle(void);

int main(void)
{
    return wrangle();
}
#endif
