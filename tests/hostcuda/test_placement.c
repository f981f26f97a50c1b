/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory lies again after a free, and what a freed byte is. Run in each mode. */
#include "check.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LARGE ((size_t)4 << 20)

static const char *mode;

static int start(void **state)
{
    *state = use_primary();
    return 0;
}

static int stop(void **state)
{
    (void)state;
    drop_primary();
    return 0;
}

GROUP_FIXTURE(start, stop);

TEST(address_after_a_free_is_as_the_mode_says)
{
    CUdeviceptr keep, first, next;
    OK(cuMemAlloc(&keep, LARGE));
    for (int i = 0; i < 8; i++) {
        OK(cuMemAlloc(&first, LARGE));
        OK(cuMemFree(first));
        OK(cuMemAlloc(&next, LARGE));
        bool is_same = first == next;
        OK(cuMemFree(next));
        assert_int_equal(is_same, strcmp(mode, "never") && strcmp(mode, "quarantine"));
    }
    OK(cuMemFree(keep));
}

TEST(last_freed_comes_first_or_lowest_does)
{
    CUdeviceptr low, high, next;
    OK(cuMemAlloc(&low, LARGE));
    OK(cuMemAlloc(&high, LARGE));
    OK(cuMemFree(low));
    OK(cuMemFree(high));
    OK(cuMemAlloc(&next, LARGE));
    if (!strcmp(mode, "same"))
        assert_true(next == high);
    else if (!strcmp(mode, "never") || !strcmp(mode, "quarantine"))
        assert_true(next != low && next != high);
    else
        assert_true(next == low);
    OK(cuMemFree(next));
}

TEST(freed_memory_is_poisoned_or_faults)
{
    CUdeviceptr keep, freed;
    OK(cuMemAlloc(&keep, 512));
    OK(cuMemAlloc(&freed, 512));
    OK(cuMemsetD32(freed, 1, 128));
    OK(cuMemFree(freed));
    if (!strcmp(mode, "poison")) {
        unsigned value;
        OK(cuMemcpyDtoH(&value, freed, 4)); /* its neighbour keeps the page mapped */
        assert_int_equal(value, 0xDBDBDBDB);
    }
    if (!strcmp(mode, "quarantine")) {
        unsigned value;
        CUcontext ctx;
        OK(cuCtxCreate(&ctx, NULL, 0, 0));
        OK(fill32(NULL, freed, 1, 1));
        assert_int_equal(cuMemcpyDtoH(&value, keep, 4), CUDA_ERROR_ILLEGAL_ADDRESS);
        OK(cuCtxDestroy(ctx));
        OK(cuCtxSetCurrent(*state));
    }
    OK(cuMemFree(keep));
}

int unit_prepare(int argc, char **argv)
{
    const struct {
        const char *mode, *variable, *value;
    } settings[] = {
        {"same", "HOSTCUDA_PLACEMENT", "same"},
        {"never", "HOSTCUDA_PLACEMENT", "never"},
        {"poison", "HOSTCUDA_POISON", "1"},
        {"quarantine", "HOSTCUDA_QUARANTINE", "1"},
    };
    mode = argc == 2 ? argv[1] : "first";
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        const char *value = getenv(settings[i].variable);
        if (!strcmp(mode, settings[i].mode) && (!value || strcmp(value, settings[i].value)))
            return 1;
    }
    return 0;
}
