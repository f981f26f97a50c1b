/* SPDX-License-Identifier: Apache-2.0 */
/* A program that links no CUDA library: it loads libcuda.so.1 RTLD_LOCAL and finds the driver's
 * functions by dlsym in a first pass, by cuGetProcAddress in a second.
 *
 *   vector_dlopen [ROUNDS] [ELEMENTS] */
#include "vector_functions.h"

#include <cuda.h>
#include <dlfcn.h>

static struct {
/* cuMemAlloc is a macro for cuMemAlloc_v2: so is the member's name, here and where it is used. */
#define MEMBER(function) __typeof__(&function) function;
    VECTOR_FUNCTIONS(MEMBER)
#undef MEMBER
} api;
#define API(function) api.function
#include "vector_work.h"

typedef CUresult (*get_proc_address_v1)(const char *, void **, int, cuuint64_t);
typedef CUresult (*get_proc_address_v2)(const char *, void **, int, cuuint64_t,
                                        CUdriverProcAddressQueryResult *);

#define NAME_OF(function)          NAME_OF_EXPANDED(function)
#define NAME_OF_EXPANDED(function) #function

static void find_by_dlsym(void *handle)
{
#define FIND(function)                                                                             \
    *(void **)&api.function = dlsym(handle, NAME_OF(function));                                    \
    CHECK(api.function);
    VECTOR_FUNCTIONS(FIND)
#undef FIND
}

static void find_by_get_proc_address(void *handle)
{
    get_proc_address_v2 newer;
    get_proc_address_v1 older;

    *(void **)&newer = dlsym(handle, "cuGetProcAddress_v2");
    *(void **)&older = dlsym(handle, "cuGetProcAddress");
#define FIND(function)                                                                             \
    api.function = NULL;                                                                           \
    if (newer)                                                                                     \
        MUST(newer(#function, (void **)&api.function, 11040, CU_GET_PROC_ADDRESS_DEFAULT, NULL));  \
    else                                                                                           \
        MUST(older(#function, (void **)&api.function, 11040, CU_GET_PROC_ADDRESS_DEFAULT));        \
    CHECK(api.function);
    VECTOR_FUNCTIONS(FIND)
#undef FIND
}

int main(int argc, char **argv)
{
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 40;
    uint64_t elements_max = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    void *handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int failed;

    if (!handle) {
        printf("vector_dlopen: no libcuda.so.1\n");
        return 1;
    }
    find_by_dlsym(handle);
    failed = vector_work("vector_dlopen, dlsym", rounds, elements_max);
    find_by_get_proc_address(handle);
    failed |= vector_work("vector_dlopen, cuGetProcAddress", rounds, elements_max);
    return failed;
}
