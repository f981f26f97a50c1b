/* SPDX-License-Identifier: Apache-2.0 */
/* Functions by name, version and flags. Run for several driver versions. */
#include "check.h"

#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The driver is opened, not linked: an old one lacks cuGetProcAddress_v2. */
static PFN_cuGetProcAddress_v11030 get_v1;
static PFN_cuGetProcAddress_v12000 get_v2; /* NULL before 12.0 */
static int driver_version;

static void *symbol_named(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

/* What the driver offers under this name; NULL for nothing. */
static void *look_up(const char *name, int version, cuuint64_t flags)
{
    void *address = &address, *by_v2 = NULL;
    CUdriverProcAddressQueryResult status;
    CUresult result = get_v1(name, &address, version, flags);
    assert_int_equal(result, address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
    if (!get_v2)
        return address;
    OK(get_v2(name, &by_v2, version, flags, &status));
    assert_int_equal(status == CU_GET_PROC_ADDRESS_SUCCESS, by_v2 != NULL);
    assert_ptr_equal(by_v2, address);
    return address;
}

TEST(each_version_gets_its_own_shape)
{
    static const struct {
        const char *name;
        int version;
        int flags;
        const char *symbol;
    } rows[] = {
        {"cuMemAlloc", 2000, 0, "cuMemAlloc"},
        {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
        {"cuMemAlloc", 11040, 0, "cuMemAlloc_v2"},
        {"cuMemFree", 3010, 0, "cuMemFree"},
        {"cuMemFree", 3020, 0, "cuMemFree_v2"},
        {"cuMemcpyAsync", 11000, 0, "cuMemcpyAsync"},
        {"cuMemcpyAsync", 11000, 1, "cuMemcpyAsync"},
        {"cuMemcpyAsync", 11000, 2, "cuMemcpyAsync_ptsz"},
        {"cuMemcpyHtoD", 11000, 2, "cuMemcpyHtoD_v2_ptds"},
        {"cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"},
        {"cuMemFreeAsync", 11020, 2, "cuMemFreeAsync_ptsz"},
        {"cuMemAllocFromPoolAsync", 11020, 2, "cuMemAllocFromPoolAsync_ptsz"},
        {"cuMemAlloc", 11020, 2, "cuMemAlloc_v2"},
        {"cuStreamBeginCapture", 10000, 0, "cuStreamBeginCapture"},
        {"cuStreamBeginCapture", 10010, 2, "cuStreamBeginCapture_v2_ptsz"},
        {"cuStreamDestroy", 2000, 0, "cuStreamDestroy"},
        {"cuStreamDestroy", 4000, 0, "cuStreamDestroy_v2"},
        {"cuCtxDestroy", 4000, 0, "cuCtxDestroy_v2"},
        {"cuDevicePrimaryCtxReset", 7000, 0, "cuDevicePrimaryCtxReset"},
        {"cuDevicePrimaryCtxReset", 11000, 0, "cuDevicePrimaryCtxReset_v2"},
        {"cuIpcOpenMemHandle", 11000, 0, "cuIpcOpenMemHandle_v2"},
        {"cuCtxCreate", 3020, 0, "cuCtxCreate_v2"},
        {"cuCtxCreate", 11040, 0, "cuCtxCreate_v3"},
        {"cuCtxCreate", 12050, 0, "cuCtxCreate_v4"},
        {"cuMemAdvise", 8000, 0, "cuMemAdvise"},
        {"cuMemAdvise", 12020, 0, "cuMemAdvise_v2"},
        {"cuMemPrefetchAsync", 12020, 2, "cuMemPrefetchAsync_v2_ptsz"},
        {"cuCtxSynchronize", 12090, 0, "cuCtxSynchronize"},
        {"cuCtxSynchronize", 13000, 0, "cuCtxSynchronize_v2"},
        {"cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"},
        {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
        {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
        {"cuCtxRecordEvent", 12050, 0, "cuCtxRecordEvent"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].version > driver_version)
            continue;
        void *address = look_up(rows[i].name, rows[i].version, (cuuint64_t)rows[i].flags);
        void *symbol = symbol_named(rows[i].symbol);
        if (!symbol || address != symbol)
            fail_msg("%s at %d flags %d: %p, %s is %p", rows[i].name, rows[i].version,
                     rows[i].flags, address, rows[i].symbol, symbol);
    }
}

TEST(what_is_not_there_is_null)
{
    assert_null(look_up("cuNoSuchThing", driver_version, 0));
    assert_null(look_up("", driver_version, 0));
    assert_null(look_up("cuMemAlloc_v2", driver_version, 0));
    assert_null(look_up("cuMemAllocAsync", 11000, 0));
}

TEST(the_status_says_why)
{
    CUdriverProcAddressQueryResult status;
    void *address;
    if (!get_v2)
        return;
    OK(get_v2("cuMemAllocAsync", &address, 11000, 0, &status));
    assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(get_v2("cuNoSuchThing", &address, 11000, 0, &status));
    assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(get_v2("cuMemAlloc", &address, 11000, 0, NULL));
}

TEST(bad_questions_are_refused)
{
    void *address;
    assert_int_equal(get_v1(NULL, &address, 11000, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(get_v1("cuInit", NULL, 11000, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(get_v1("cuInit", &address, driver_version + 10, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(get_v1("cuInit", &address, 11000, 4), CUDA_ERROR_INVALID_VALUE);
}

TEST(an_older_driver_lacks_what_came_later)
{
    bool has_fence = driver_version >= 12050;
    assert_int_equal(symbol_named("cuCtxRecordEvent") != NULL, has_fence);
    assert_int_equal(look_up("cuCtxRecordEvent", driver_version, 0) != NULL, has_fence);
    assert_non_null(symbol_named("cuMemAlloc_v2"));
}

TEST(what_is_not_implemented_says_so_and_is_counted)
{
    int (*create)(void *, void *, void *, void *);
    unsigned long long (*count)(void);
    unsigned long long (*count_of)(const char *);
    *(void **)&create = symbol_named("cuTexObjectCreate");
    *(void **)&count = symbol_named("hostcuda_unsupported_count");
    *(void **)&count_of = symbol_named("hostcuda_call_count");
    unsigned long long before = count();
    assert_int_equal(create(NULL, NULL, NULL, NULL), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(count(), before + 1);
    assert_int_equal(count_of("cuTexObjectCreate"), 1);
    assert_int_equal(count_of("cuNoSuchThing"), 0);
}

TEST(withheld_names_are_gone)
{
    bool is_withheld = getenv("HOSTCUDA_WITHHOLD") != NULL;
    assert_int_equal(symbol_named("cuMemGetInfo_v2") == NULL, is_withheld);
    assert_int_equal(look_up("cuMemGetInfo", 11000, 0) == NULL, is_withheld);
    assert_int_equal(look_up("cuMemHostGetFlags", 11000, 0) == NULL, is_withheld);
}

int unit_prepare(int argc, char **argv)
{
    PFN_cuDriverGetVersion_v2020 get_version;
    (void)argc;
    (void)argv;
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL))
        return 1;
    *(void **)&get_v1 = symbol_named("cuGetProcAddress");
    *(void **)&get_v2 = symbol_named("cuGetProcAddress_v2");
    *(void **)&get_version = symbol_named("cuDriverGetVersion");
    return !get_v1 || !get_version || get_version(&driver_version);
}
