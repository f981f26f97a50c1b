/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"
#include "hostcuda.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static int start(void **state)
{
    *state = use_primary();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    hostcuda_fault_clear();
    drop_primary();
    return 0;
}

FIXTURE(start, stop);

static CUresult allocate_and_free(void)
{
    CUdeviceptr pointer;
    CUresult result = cuMemAlloc(&pointer, 512);
    if (!result)
        OK(cuMemFree(pointer));
    return result;
}

TEST(nth_call_fails_as_often_as_asked)
{
    OK(hostcuda_fault_add("cuMemAlloc_v2:nth=3:count=2:code=2"));
    OK(allocate_and_free());
    OK(allocate_and_free());
    assert_int_equal(allocate_and_free(), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(allocate_and_free(), CUDA_ERROR_OUT_OF_MEMORY);
    OK(allocate_and_free());
    assert_int_equal(hostcuda_fault_hits(), 2);
}

TEST(nothing_fails_or_counts_while_paused)
{
    OK(hostcuda_fault_add("cuMemAlloc_v2:nth=2:code=2"));
    OK(allocate_and_free());
    hostcuda_fault_pause(1);
    OK(allocate_and_free());
    OK(allocate_and_free());
    hostcuda_fault_pause(0);
    assert_int_equal(allocate_and_free(), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(hostcuda_fault_hits(), 1);
}

TEST(base_name_means_all_versions)
{
    OK(hostcuda_fault_add("cuMemAlloc,cuMemGetInfo:code=999"));
    assert_int_equal(allocate_and_free(), CUDA_ERROR_UNKNOWN);
    assert_int_equal(cuMemGetInfo(NULL, NULL), CUDA_ERROR_UNKNOWN);
}

TEST(percent_is_repeatable_by_seed)
{
    unsigned runs[2] = {0, 0};
    for (int run = 0; run < 2; run++) {
        OK(hostcuda_fault_add("cuMemAlloc_v2:percent=30:seed=7:code=2"));
        for (unsigned i = 0; i < 32; i++)
            runs[run] |= (allocate_and_free() != 0 ? 1u : 0u) << i;
        hostcuda_fault_clear();
    }
    assert_true(runs[0] != 0 && runs[0] != UINT32_MAX);
    assert_int_equal(runs[0], runs[1]);
}

TEST(sticky_fault_stays_in_the_context)
{
    CUcontext ctx;
    OK(cuCtxCreate(&ctx, NULL, 0, 0));
    OK(hostcuda_fault_add("cuMemAlloc_v2:count=1:code=700:sticky"));
    assert_int_equal(allocate_and_free(), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(allocate_and_free(), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
    OK(cuCtxDestroy(ctx));
    OK(cuCtxSetCurrent(*state));
    OK(allocate_and_free());
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

TEST(delays_come_before_and_after)
{
    OK(hostcuda_fault_add("cuMemGetInfo_v2:before_us=3000:after_us=3000"));
    double begin = seconds();
    OK(cuMemGetInfo(NULL, NULL));
    assert_true(seconds() - begin >= 0.006);
}

TEST(bad_rules_are_refused)
{
    assert_int_equal(hostcuda_fault_add("cuNoSuchThing:code=1"), -1);
    assert_int_equal(hostcuda_fault_add("cuMemAlloc:cod=1"), -1);
    assert_int_equal(hostcuda_fault_add("cuMemAlloc:code=x"), -1);
    assert_int_equal(hostcuda_fault_add("cuMemAlloc:code="), -1);
}

TEST(what_is_not_implemented_may_fail_too)
{
    unsigned long long calls = hostcuda_call_count("cuFuncLoad");
    OK(hostcuda_fault_add("cuFuncLoad:count=1:code=2"));
    assert_int_equal(cuFuncLoad(NULL), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(cuFuncLoad(NULL), CUDA_ERROR_NOT_SUPPORTED);
    assert_int_equal(hostcuda_call_count("cuFuncLoad") - calls, 2);
}

TEST(the_list_of_all_calls_adds_up_to_their_number)
{
    char line[128], name[100];
    unsigned long long count, sum = 0, of_this = 0, before = hostcuda_all_calls(NULL);
    FILE *list = tmpfile();

    assert_non_null(list);
    (void)cuFuncLoad(NULL);
    assert_int_equal(hostcuda_all_calls(list), before + 1);
    rewind(list);
    while (fgets(line, sizeof(line), list)) {
        assert_int_equal(sscanf(line, "%99s %llu", name, &count), 2);
        sum += count;
        of_this += strcmp(name, "cuFuncLoad") ? 0 : count;
    }
    fclose(list);
    assert_int_equal(sum, before + 1);
    assert_int_equal(of_this, hostcuda_call_count("cuFuncLoad"));
}
