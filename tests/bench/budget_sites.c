/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations and frees at 16 call sites in turn, more than a thread's tables of callers hold
 * (RS_RECENT_CALLERS), for instruction_budget.py.
 *
 *   budget_sites BYTES COUNT    COUNT pairs, by the runtime or, with BY_DRIVER, by the driver API
 */
#include "sample.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

enum { SITES = 16 };

#define INLINE static inline __attribute__((always_inline))

#ifdef BY_DRIVER
INLINE void pair(size_t bytes)
{
    CUdeviceptr block;

    MUST(cuMemAlloc(&block, bytes));
    MUST(cuMemFree(block));
}

static void begin(void)
{
    CUcontext context;

    MUST(cuInit(0));
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
}
#else
INLINE void pair(size_t bytes)
{
    void *block;

    MUST(cudaMalloc(&block, bytes));
    MUST(cudaFree(block));
}

static void begin(void)
{
}
#endif

/* Call sites of their own, as the function is inlined. */
INLINE void four_pairs(size_t bytes)
{
    pair(bytes);
    pair(bytes);
    pair(bytes);
    pair(bytes);
}

int main(int argc, char **argv)
{
    size_t bytes = argc == 3 ? strtoull(argv[1], NULL, 0) : 0;
    unsigned count = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 0) : 0;

    begin();
    for (unsigned i = 0; i < count; i += SITES) {
        four_pairs(bytes);
        four_pairs(bytes);
        four_pairs(bytes);
        four_pairs(bytes);
    }
    puts("done");
    return 0;
}
