/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the race detector share: a block, two streams and an event, and what was said.
 */
#pragma once

#include "check.h"
#include "hostcuda.h"

static CUdeviceptr words;
static CUstream a, b;
static CUevent event;

static int start(void **state)
{
    *state = use_primary();
    OK(cuMemAlloc(&words, 1 << 20));
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    hostcuda_note_allocate((void *)words, 4096);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    OK(cuCtxSynchronize());
    OK(cuMemFree(words));
    OK(cuStreamDestroy(a));
    OK(cuStreamDestroy(b));
    OK(cuEventDestroy(event));
    drop_primary();
    hostcuda_race_reset();
    return 0;
}

FIXTURE(start, stop);

/* All work is done, for the schedule is stepped, but the program has not asked. */
static void let_finish(void)
{
    while (hostcuda_step(NULL))
        ;
}

static void expect_report(const char *what)
{
    assert_true(hostcuda_race_count() > 0);
    assert_string_equal(hostcuda_race_last(), what);
}

static void expect_silence(void)
{
    if (hostcuda_race_count())
        fail_msg("%s", hostcuda_race_last());
}
