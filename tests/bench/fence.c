/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver takes for a fence behind all work of a context, and for asking whether it is
 * done: what an allocator that waits for nobody has to pay now and then. */
#include "bench.h"

#include "sample.h"

#include <cuda.h>

enum { SAMPLES = 2000 };

void bench_fence(void)
{
    static uint64_t record_ns[SAMPLES], query_ns[SAMPLES];
    __typeof__(&cuEventQuery) query = bench_driver_function("cuEventQuery");
    __typeof__(&cuCtxGetCurrent) current = bench_driver_function("cuCtxGetCurrent");
    CUresult (*record)(CUcontext, CUevent) = NULL;
    enum cudaDriverEntryPointQueryResult found;
    CUcontext context = NULL;
    cudaEvent_t event;
    int failed = 0;

    MUST(cudaGetDriverEntryPointByVersion("cuCtxRecordEvent", (void **)&record, 12050,
                                          cudaEnableDefault, &found));
    if (!record)
        return; /* a driver before 12.5 */
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    MUST(current(&context));
    for (unsigned i = 0; i < SAMPLES; i++) {
        uint64_t begin = bench_now_ns(), recorded;
        failed |= record(context, event);
        recorded = bench_now_ns();
        (void)query(event);
        query_ns[i] = bench_now_ns() - recorded;
        record_ns[i] = recorded - begin;
    }
    MUST(failed);
    MUST(cudaDeviceSynchronize());
    MUST(cudaEventDestroy(event));
    printf("fence/record %llu ns\n", (unsigned long long)bench_median(record_ns, SAMPLES));
    printf("fence/query %llu ns\n", (unsigned long long)bench_median(query_ns, SAMPLES));
}
