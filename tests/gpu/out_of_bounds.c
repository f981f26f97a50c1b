/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel writes one word past its block, which a tool is to find.  What the calls after it answer
 * depends on the tool, so nothing is said of that. */
#include "gpu_work.h"

int main(void)
{
    enum { WORDS = 1000 };
    CUdevice device;
    CUcontext context;
    CUdeviceptr block;

    watchdog("out_of_bounds", 50);
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    gpu_work_load();
    MUST(cuMemAlloc(&block, WORDS * sizeof(uint32_t)));
    fill(NULL, block, WORDS + 1, 0x77);
    (void)cuCtxSynchronize();
    (void)cuMemFree(block);
    printf("out_of_bounds: %d words of %d written\n", WORDS + 1, WORDS);
    return 0;
}
