/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver takes for a fence behind all work of a context, and for asking whether it is
 * done: what an allocator that waits for nobody has to pay now and then. */
#include "bench.h"

#include "sample.h"

#include <cuda.h>

enum { SAMPLES = 2000, BYTES = 4096 };

/* One fence behind no work, or behind a little, and the question right after: with no work it is
 * done by then, and behind some it is not, which the answer shows. */
static void measure(CUresult (*record)(CUcontext, CUevent), __typeof__(&cuEventQuery) query,
                    CUcontext context, cudaEvent_t event, void *block)
{
    static uint64_t record_ns[SAMPLES], query_ns[SAMPLES];
    const CUresult wanted = block ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    unsigned count = 0;

    for (unsigned i = 0; i < SAMPLES; i++) {
        uint64_t begin, recorded, asked;
        CUresult state;

        if (block)
            MUST(cudaMemsetAsync(block, 0, BYTES, 0));
        begin = bench_now_ns();
        MUST(record(context, event));
        recorded = bench_now_ns();
        state = query(event);
        asked = bench_now_ns();
        record_ns[count] = recorded - begin;
        query_ns[count] = asked - recorded;
        count += state == wanted;
        MUST(cudaDeviceSynchronize());
    }
    if (count == 0)
        return;
    if (!block)
        printf("fence/record %llu ns\n", (unsigned long long)bench_median(record_ns, count));
    printf("fence/query%s %llu ns\n", block ? "_pending" : "",
           (unsigned long long)bench_median(query_ns, count));
}

void bench_fence(void)
{
    __typeof__(&cuEventQuery) query = bench_driver_function("cuEventQuery");
    __typeof__(&cuCtxGetCurrent) current = bench_driver_function("cuCtxGetCurrent");
    CUresult (*record)(CUcontext, CUevent) = NULL;
    enum cudaDriverEntryPointQueryResult found;
    CUcontext context = NULL;
    cudaEvent_t event;
    void *block;

    MUST(cudaGetDriverEntryPointByVersion("cuCtxRecordEvent", (void **)&record, 12050,
                                          cudaEnableDefault, &found));
    if (!record)
        return; /* a driver before 12.5 */
    MUST(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    MUST(cudaMalloc(&block, BYTES));
    MUST(current(&context));
    measure(record, query, context, event, NULL);
    measure(record, query, context, event, block);
    MUST(cudaFree(block));
    MUST(cudaEventDestroy(event));
}
